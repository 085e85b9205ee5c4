"""Goodput of real engines under an open loop: what is asked, who is compared, and what it comes to."""
