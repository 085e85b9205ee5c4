"""What the Scheduler tells operators of its state. Compiled modules come first (cluster/compiled.py)."""

from cluster import compiled

compiled.put_before(__name__, __path__)
