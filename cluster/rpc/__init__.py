"""Connections between Baton's processes."""
