"""The links between workers: which are proved, and which come next. Compiled modules come first
(cluster/compiled.py).
"""

from cluster import compiled

compiled.put_before(__name__, __path__)
