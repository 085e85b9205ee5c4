"""The config sections `prefill:` and `decode:`, each of one pool of workers."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cluster.config.environment import SECRET_VARIABLE
from cluster.config.node_choice import NodeChoice
from cluster.config.structured_output import GrammarBudgetConfig
from cluster.config.units import Count
from cluster.messages.transport import Transport

BLOCK_HASH_ALGORITHM = "sha256"
"""vLLM's `prefix_caching_hash_algo`, of the engines and of the ingress. It gives the same hash in all processes with
one version of Python and of vLLM, which the processes of a Ray cluster have. An attacker can make collisions of vLLM's
xxhash, but not of sha256. sha256 takes a third of the time of vLLM's sha256_cbor.
"""
DEFAULT_BLOCK_SIZE = 16
"""Tokens per KV block where `engine.block_size` is not set: vLLM's own value for most models on GPUs."""

SIDE_CHANNEL_VARIABLES = frozenset({"VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"})
"""vLLM's environment variables for the side channel. Each engine has its own values, so the config must not set them.
"""


class DiskTierConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder for KV blocks, for prompts that come back after the DRAM tier has dropped their blocks or the worker has
    restarted. Workers with the same engine arguments and weights share the blocks.
    """

    path: str
    """Absolute path of the folder, on every node that the pool runs on. Baton makes a subfolder. On a disk that reads
    slower than the engine computes, every hit is a loss.
    """
    gib: Annotated[float, Meta(ge=1, le=1 << 20)]
    """Most GiB in the folder, of all workers that write to it. More keeps prompts longer; less than a day's prompts
    wears the disk for blocks that are gone before they are used again.
    """

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ValueError(f"path: {self.path!r} must be absolute: a relative path depends on where a worker runs")


class TiersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a worker keeps the KV blocks that its engine's memory drops (docs/tiers.md)."""

    dram_gib: Annotated[float, Meta(ge=1 / 16, le=1 << 14)] | None = None
    """Host memory of the DRAM tier per worker, in GiB, in /dev/shm. The worker takes it when it starts. More saves more
    prefills; more than the node can spare swaps or kills the worker.
    """
    disk: DiskTierConfig | None = None
    """The disk tier, behind the DRAM tier."""

    def __post_init__(self) -> None:
        if self.disk and self.dram_gib is None:
            raise ValueError(
                "disk needs dram_gib: vLLM moves KV blocks between an engine and a disk through the DRAM tier"
            )


class PoolConfig(NodeChoice, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool of workers."""

    replicas: Count = 1
    """Workers in the pool. More workers raise the capacity, and each takes `cpus`, `gpus` and an engine's memory."""
    engine: dict[str, Any] = {}
    """vLLM engine arguments for this pool only, in addition to the shared ones."""
    cpus: Annotated[float, Meta(ge=0)] = 1.0
    """CPUs that Ray reserves per worker. A reservation does not bind threads to cores; `cpu_cores` does."""
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    """GPUs per worker: tensor_parallel_size x prefill_context_parallel_size, or a part of one GPU. 0 on a CPU."""
    cpu_cores: list[str] = []
    """Cores that the engine's compute threads are bound to, e.g. ["0-3", "4-7"]. Worker number i takes entry i, and the
    entries repeat if there are more workers. An empty list binds no threads, which is right where workers share cores.
    """
    cpu_threads: Count = 1
    """Compute threads of an engine whose threads are not bound to cores (CPU only). More threads than free cores make
    every step slower; fewer leave cores unused.
    """
    accelerator_type: str | None = None
    """Accelerator that a worker's node must have, by Ray's name, e.g. "H100"."""
    transport: Transport | None = None
    """The only transport that may carry KV blocks: "tcp", "shared_memory", "rdma" or "nvlink". If it is missing, the
    fastest transport of the node is used. Both pools need the same value, or they have no transport in common.
    """
    env: dict[str, str] = {}
    """Environment variables of the worker and its engine, e.g. UCX_IB_GID_INDEX. They replace the values that Baton
    sets.
    """
    kv_lease_s: Annotated[int, Meta(ge=5, le=600)] = 30
    """Prefill workers: the time for which KV blocks are kept for a decode worker to redeem their lease, in seconds.
    Then the blocks are freed, and a decode worker that comes later computes the prompt. A shorter time loses the
    handoffs of slow decode queues; a longer time keeps the memory of lost handoffs longer.
    """
    pull_timeout_s: Annotated[float, Meta(ge=1, le=600)] = 10.0
    """Decode workers: the time in which a prompt's KV blocks must be read, in seconds. Then the decode worker computes
    the prompt instead. A shorter time gives up slow links; a longer time keeps a request waiting on a broken network.
    """
    stall_timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    """Time in which an engine must answer, in seconds. Then the requests of the engine fail and run on other workers;
    after four times this time, the worker is replaced. It must be longer than the engine's longest step. A longer time
    leaves requests on an engine that hangs; a shorter time takes requests from an engine that is only slow.
    """
    max_ongoing_requests: Count = 512
    """Most requests that a worker takes; it refuses more. The engine queues requests that do not fit into its batch. A
    higher limit makes longer queues in the engine; a lower limit refuses requests that the engine could batch.
    """
    drain_s: Annotated[float, Meta(ge=0, le=86400)] = 60.0
    """Time that a worker has to finish its requests when Serve stops it, in seconds. Two seconds before the end, the
    requests that still run go to other workers where they can. A shorter time interrupts long answers at each update; a
    longer time makes updates slow.
    """
    max_surge_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    """Workers that an update may start before it ends old ones, as a percentage of `replicas`. The nodes must have room
    for them (`cpus`, `gpus`, `resources`), or the update waits for it. With 0, each worker ends before its successor
    starts, so that no GPU is needed beyond those of the pool, and the pool is short of workers meanwhile.
    """
    kept_share: Annotated[float, Meta(ge=0, le=0.9)] = 0.0
    """Most of an engine's KV memory in which the blocks of conversations that are likely to go on soon are evicted
    after all others (docs/retention.md). More finds the blocks of more agents again; less finds more of other prompts.
    0 keeps none.
    """
    tiers: TiersConfig = TiersConfig()
    grammars: GrammarBudgetConfig = GrammarBudgetConfig()

    def __post_init__(self) -> None:
        if SECRET_VARIABLE in self.env:
            raise ValueError(
                f"{SECRET_VARIABLE} must not be set here: Ray's dashboard would show it, and processes outside this "
                "pool would not know it. Set it in the environment of every node before Ray starts there"
            )
        for name in SIDE_CHANNEL_VARIABLES & self.env.keys():
            raise ValueError(f"{name} is set by Baton: `network.host` is the host on which the side channel listens")
        if self.grammars.longest_step_s >= self.stall_timeout_s:
            raise ValueError(
                f"grammars.burst_ms lets the grammars of one step take {self.grammars.longest_step_s:g} s, and an "
                f"engine that does not answer for stall_timeout_s, {self.stall_timeout_s:g} s, counts as hanging: "
                "lower grammars.burst_ms or raise stall_timeout_s"
            )
