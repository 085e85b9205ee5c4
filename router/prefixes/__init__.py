"""The index of the KV blocks that each worker caches. Compiled modules come first (cluster/compiled.py)."""

from cluster import compiled

compiled.put_before(__name__, __path__)
