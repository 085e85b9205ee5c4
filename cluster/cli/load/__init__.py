"""`baton load`."""
