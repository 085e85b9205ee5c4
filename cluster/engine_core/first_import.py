"""What the processes of an engine import before all else (`spawned_processes_import`)."""

from cluster.uncollected import uncollected

with uncollected():
    import vllm.v1.engine.core  # noqa: F401
