"""What bench/overhead.py is made of: the systems that it compares, their load, and the accounts of their CPU time."""
