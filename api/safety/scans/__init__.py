"""What is found in a text that comes in parts. Compiled modules come first (cluster/compiled.py)."""

from cluster import compiled

compiled.put_before(__name__, __path__)
