"""What bench/goodput.py is made of: the cells of the matrix, their trials and where these are kept, and the tables."""
