"""What failures have shown of workers and of pairs of them: who cannot be reached, and whose handoffs are wrong.
Compiled modules come first (cluster/compiled.py).
"""

from cluster import compiled

compiled.put_before(__name__, __path__)
