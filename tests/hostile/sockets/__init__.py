"""Bytes of strangers at the sockets of Baton's processes."""
