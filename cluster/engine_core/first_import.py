"""What the processes of an engine import before all else (`spawned_processes_import`)."""

from cluster.importing import without_collection

with without_collection():
    import vllm.v1.engine.core  # noqa: F401
