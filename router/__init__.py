"""The Scheduler. The modules that decide run compiled if `baton compile` has compiled these very sources."""

from cluster import compiled

compiled.put_before(__name__, __path__)
