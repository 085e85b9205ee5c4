"""Which requests are admitted, wait, or are refused. Compiled modules come first (cluster/compiled.py)."""

from cluster import compiled

compiled.put_before(__name__, __path__)
