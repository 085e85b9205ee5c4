"""The sections `prefill:` and `decode:`: one pool of workers each."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cluster.config.environment import SECRET_VARIABLE
from cluster.config.structured_output import GrammarBudgetConfig
from cluster.config.units import Count
from cluster.messages.transport import Transport

BLOCK_HASH_ALGORITHM = "sha256"
"""vLLM's `prefix_caching_hash_algo`, of the engines and of the ingress. Gives the same in all processes of one version
of Python and of vLLM, as those of a Ray cluster must be. Nobody can make collisions, as with vLLM's xxhash; takes a
third of the time of its sha256_cbor.
"""
DEFAULT_BLOCK_SIZE = 16
"""vLLM's own for most models on GPUs."""

SIDE_CHANNEL_VARIABLES = frozenset({"VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"})
"""Environment variables of vLLM's, of which each engine has values of its own."""


class DiskTierConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A folder for KV blocks, for prompts that come back after the DRAM tier has dropped them or the worker has
    restarted. Workers whose engine arguments and weights are the same share what they find there.
    """

    path: str
    """Absolute, on every node that the pool runs on; Baton makes a subfolder. A disk that reads slower than the engine
    computes makes every hit a loss.
    """
    gib: Annotated[float, Meta(ge=1, le=1 << 20)]
    """What the folder may hold, of all workers that write to it. More keeps prompts longer; less than a day's prompts
    wears the disk for blocks that are gone when they are asked for.
    """

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ValueError(f"path must be absolute, {self.path!r} would depend on where a worker runs")


class TiersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a worker keeps the KV blocks that its engine's memory drops. See docs/tiers.md."""

    dram_gib: Annotated[float, Meta(ge=1 / 16, le=1 << 14)] | None = None
    """Host memory per worker, in /dev/shm, taken when it starts. More brings back more prompts without computing them;
    what the node cannot spare is swapped or kills the worker.
    """
    disk: DiskTierConfig | None = None
    """A disk behind the DRAM tier."""

    def __post_init__(self) -> None:
        if self.disk and self.dram_gib is None:
            raise ValueError(
                "disk needs dram_gib: vLLM moves blocks between an engine and a disk through its DRAM tier"
            )


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pool of workers."""

    replicas: Count = 1
    """Workers in the pool. More raises capacity, and takes `cpus`, `gpus` and an engine's memory each."""
    engine: dict[str, Any] = {}
    """vLLM engine arguments for this pool alone, on top of the shared ones."""
    cpus: Annotated[float, Meta(ge=0)] = 1.0
    """CPUs that Ray reserves per worker. Reservation only; `cpu_cores` binds."""
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    """GPUs per worker: tensor_parallel_size x pipeline_parallel_size. 0 on CPU."""
    cpu_cores: list[str] = []
    """Cores that the engine's compute threads are bound to, one entry per worker of the pool in turn, e.g. ["0-3",
    "4-7"]. Empty: not bound, which is right where workers share cores.
    """
    cpu_threads: Count = 1
    """Compute threads of the engine when it is not bound (CPU only). More than the free cores makes every step
    slower.
    """
    accelerator_type: str | None = None
    """Only on nodes with this accelerator, e.g. "H100" (Ray's names)."""
    resources: dict[str, float] = {}
    """Custom Ray resources that a worker takes, to pin the pool to nodes that offer them."""
    label_selector: dict[str, str] = {}
    """Only on nodes with these labels (`ray start --labels`), e.g. {"pool": "decode"}."""
    transport: Transport | None = None
    """The only transport that may carry KV blocks: "tcp", "shared_memory", "rdma" or "nvlink". None: the fastest that
    the node has. The same in both pools, or they have none in common.
    """
    env: dict[str, str] = {}
    """Environment of the worker and its engine, e.g. UCX_IB_GID_INDEX. Wins over what Baton sets."""
    kv_lease_s: Annotated[int, Meta(ge=5, le=600)] = 30
    """How long a prefill worker keeps KV blocks that nobody asks for. Shorter loses the handoffs of slow decode
    queues, longer keeps memory after a lost one.
    """
    pull_timeout_s: Annotated[float, Meta(ge=1, le=600)] = 10.0
    """Decode workers: how long reading a prompt's KV blocks may take before the prompt is computed instead. Shorter
    gives up on slow links, longer leaves a request waiting for a network that is cut.
    """
    stall_timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    """An engine that does not answer for so long hangs: its requests go elsewhere, and if it stays so its worker is
    replaced. Must be longer than an engine's longest step.
    """
    max_ongoing_requests: Count = 512
    """Requests that a worker takes before it refuses; the engine queues what does not fit its batch."""
    drain_s: Annotated[float, Meta(ge=0, le=86400)] = 60.0
    """How long a worker that is to go may finish what runs on it. Shorter cuts long answers off at each update (they
    go on elsewhere where they can), longer makes updates slow.
    """
    tiers: TiersConfig = TiersConfig()
    grammars: GrammarBudgetConfig = GrammarBudgetConfig()

    def __post_init__(self) -> None:
        if SECRET_VARIABLE in self.env:
            raise ValueError(
                f"{SECRET_VARIABLE} would be readable in Ray's dashboard here, and unknown to the other processes: set "
                "it in the environment of every node, before Ray starts there"
            )
        for name in SIDE_CHANNEL_VARIABLES & self.env.keys():
            raise ValueError(f"{name} is set by Baton: `network.host` says where the side channel listens")
        if self.grammars.longest_step_s >= self.stall_timeout_s:
            raise ValueError(
                f"grammars.burst_ms lets the grammars of one step take {self.grammars.longest_step_s:g} s, and an "
                f"engine that does not answer for stall_timeout_s, {self.stall_timeout_s:g} s, is taken to hang: lower "
                "the one or raise the other"
            )
