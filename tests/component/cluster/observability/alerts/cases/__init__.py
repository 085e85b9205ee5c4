"""When each alert must fire, and when it must not, on series that are made for it."""
