"""What the `args:` of a Serve config may say. Parsed once, strictly, when the application is built.

An unknown key or a value out of range fails there, with its path. Each deployment receives its own part and nothing
else.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from cluster.reports import Transport
from cluster.slo import SloConfig

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, lt=1)]

REPO_ROOT = Path(__file__).resolve().parents[1]


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


BLOCK_HASH_ALGORITHM = "sha256"
"""vLLM's `prefix_caching_hash_algo`, of the engines and of the ingress. Gives the same in all processes of one version
of Python and of vLLM, as those of a Ray cluster must be. Nobody can make collisions, as with vLLM's xxhash; takes a
third of the time of its sha256_cbor.
"""
DEFAULT_BLOCK_SIZE = 16
"""vLLM's own for most models on GPUs."""

_BATON_SETS = frozenset(
    {"model", "kv_transfer_config", "served_model_name", "kv_events_config", "prefix_caching_hash_algo"}
)
_HASHED_ALIKE = frozenset({"block_size", "prefix_match_unit"})
"""What the ingress and all engines must agree on to know a prompt's KV blocks by the same hashes."""


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
    """How long a prefill worker keeps KV blocks that nobody asks for. Shorter loses the hand-overs of slow decode
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


class IngressConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    replicas: Count = 1
    cpus: Annotated[float, Meta(ge=0)] = 0.5
    host: str = "127.0.0.1"
    """IPv4 address to listen on; "0.0.0.0" for all of the node's."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    """The same for all replicas: those on one node share it."""
    max_ongoing_requests: Count = 1024
    """Open requests per ingress replica, and streams that are read again; it refuses more."""
    max_body_bytes: Count = 32 << 20
    """Of a request. A prompt of a million tokens has about 5 MB."""
    max_unread_tokens: Count = 4096
    """How many tokens a client may lag behind its stream, beyond what the network's buffers hold, before its request is
    ended. More lets slow clients keep their decode slots longer.
    """
    tool_call_parser: str | None = None
    """vLLM's parser for the tool calls of this model, e.g. "hermes". None: `tools` cannot be called automatically."""
    reasoning_parser: str | None = None
    """vLLM's parser for the reasoning of this model, e.g. "qwen3"."""
    chat_template: str | None = None
    """Path of a chat template that replaces the model's own."""
    allow_path_header: bool = False
    """Let requests choose their path by the header `x-baton-path: D` or `P->D`. For debugging and tests."""
    first_token_timeout_s: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    """A request that has no token by then, after all retries, is refused with Retry-After. The longest prompt must be
    computed in it.
    """
    verified_share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Share of the hand-overs that are checked before their first token is released: the decode engine's most likely
    first tokens against the prefill engine's. More finds wrong KV blocks sooner and delays more first tokens.
    """
    keep_receipts: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Route receipts that each replica keeps for GET /baton/receipts: of the last requests, where they ran, what was
    predicted and how it came out. They say nothing of what was asked. A few kB each.
    """
    keep_alive_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    """A stream that has been silent for so long, in a long prefill too, sends an SSE comment. Longer than the idle
    timeout of a proxy loses the connection; shorter commits to status 200 before slow requests can fail.
    """


Days = Annotated[float, Meta(gt=0, le=36500)]


class TenantStateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is other for one tenant."""

    retention_days: Days | None
    """As below. None: for ever."""


class StateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where conversations are kept. See docs/state.md."""

    database_url: str | None = None
    """Of a PostgreSQL database that Baton may make its tables in, "postgresql://user@host/name". None: a server of its
    own, which is right for one machine: it runs where the ingress runs. The environment variable BATON_DATABASE_URL
    wins.
    """
    redis_url: str | None = None
    """Of a Redis, "redis://host:6379/0": it holds what can be made anew. None: a server of its own, where the ingress
    runs. The environment variable BATON_REDIS_URL wins.
    """
    data_dir: str = ".baton/data"
    """Where servers of its own keep their data, and the master key is unless BATON_MASTER_KEY gives it. Relative ones
    are in the repository.
    """
    max_connections: Count = 8
    """To PostgreSQL, per ingress replica, for what clients ask. Two more write what is generated, and see whether it is
    there.
    """
    keep_deleted_days: Annotated[float, Meta(ge=0, le=3650)] = 7.0
    """What clients have deleted is gone for them at once, and from the database after so long. Longer can be restored
    by hand; shorter is what users who delete something expect.
    """
    cache_s: Annotated[float, Meta(ge=0, le=86400)] = 600.0
    """How long what was read may be shown again while PostgreSQL is away. Longer bridges longer outages and shows older
    copies; 0 shows none.
    """
    retention_days: Days | None = None
    """Conversations that nobody has touched for so long are purged, and responses without a conversation that are so
    old. None: for ever. Shorter protects who said something; longer keeps what they may come back to.
    """
    tenants: dict[str, TenantStateConfig] = {}
    """By the names that `baton tenant` prints."""
    max_conversation_items: Count = 10_000
    """Of a conversation; those that were replaced count. What would exceed it is refused, but for the answer to a turn.
    Each turn reads what its conversation has: with more, long ones take the ingress and PostgreSQL longer, with less
    they end sooner.
    """
    search: bool = True
    """Whether messages can be searched. Their words are kept then, as keyed hashes, which tell who has the disk which
    messages share a word; a turn takes about a millisecond longer.
    """
    search_language: Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]*\Z")] = "simple"
    """A text search configuration of PostgreSQL. `simple` is fair to all languages; that of one, `english` say, finds
    "ships" by "ship", and looks for no "the". What was said before is indexed anew after a change.
    """
    titles: bool = True
    """Whether the model gives conversations a title after their first turn: a short request of class batch each."""
    master_key: Annotated[str, Meta(pattern=r"^[\w.]+:\w+\Z")] | None = None
    """"package.module:callable" that gives the master key, for a key management service (docs/state.md). None:
    BATON_MASTER_KEY, or else a file in `data_dir`.
    """

    @property
    def words_language(self) -> str:
        """Empty where nothing is searched."""
        return self.search_language if self.search else ""


class ContextConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a conversation is fitted into the model's window when `truncation` is "auto". See docs/state.md."""

    default_truncation: Literal["disabled", "auto"] = "disabled"
    """For requests that do not say. "disabled", as OpenAI has it, refuses what does not fit."""
    answer_share: Share = 0.25
    """Of the window, kept free for the answer; for a longer `max_output_tokens` more is, up to half. More makes room
    for long answers, less for the conversation. What is left is the prompt's, and the shares below are of that.
    """
    system_share: Share = 0.5
    """The most that instructions, leading system messages and tools may take; more of them is refused, so that there is
    room for a conversation.
    """
    summary_share: Annotated[float, Meta(ge=0, le=0.4)] = 0.1
    """For the summary of what is too old to be sent as it is. More keeps more detail; 0 makes no summaries."""
    memory_share: Annotated[float, Meta(ge=0, le=0.4)] = 0.1
    """For what a turn is reminded of: older messages that have to do with its question. More finds more, and stays with
    its turn for as long as that is sent; 0 looks for nothing.
    """
    history_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The most that the turns which are sent as they are may take, where the others leave as much. Less makes prompts
    short and prefills fast, and leaves more to the summary.
    """
    low_water: Share = 0.5
    """When the turns have outgrown their part, the oldest are left out until this share of it is left, and then none
    for many turns, which find the same KV prefix. Less moves the beginning more seldom, and leaves more out each time.
    """
    summary_step: Share = 0.2
    """The summary is extended when so much has been said, as a share of the turns' part, that it does not cover. Less
    is more often and more up to date, more is cheaper.
    """
    summary_model: str | None = None
    """A served model that writes the summaries. None: the one that answers."""

    def __post_init__(self) -> None:
        if self.low_water + self.summary_step >= 1:
            raise ValueError(
                "low_water and summary_step must be less than 1 together: the beginning would move at once"
            )


class AppConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole application."""

    model: str
    """A Hugging Face model folder (relative ones are looked up in the repository first) or hub name."""
    served_model_name: str | None = None
    """The name that clients use. None: the last part of `model`."""
    log_level: str = "WARNING"
    """vLLM's log level in every process."""
    engine: dict[str, Any] = {}
    """vLLM engine arguments shared by both pools and the ingress: max_model_len, dtype, block_size, ..."""
    prefill: PoolConfig = PoolConfig()
    decode: PoolConfig = PoolConfig()
    ingress: IngressConfig = IngressConfig()
    state: StateConfig = StateConfig()
    context: ContextConfig = ContextConfig()
    slo: SloConfig = SloConfig()
    """This model's objectives, by SLO class (docs/slo.md)."""

    def __post_init__(self) -> None:
        for name, engine in (("engine", self.engine), ("prefill", self.prefill.engine), ("decode", self.decode.engine)):
            if owned := engine.keys() & _BATON_SETS:
                raise ValueError(f"{name}: {', '.join(sorted(owned))} cannot be set here, Baton sets it")
            if engine.get("nnodes", 1) != 1:
                raise ValueError(f"{name}: nnodes: an engine must be on one machine, whose clock its hand-overs need")
        for name, pool in (("prefill", self.prefill), ("decode", self.decode)):
            if shared := pool.engine.keys() & _HASHED_ALIKE:
                raise ValueError(f"{name}: {', '.join(sorted(shared))} must be the same everywhere: set it in `engine`")
            if "PYTHONHASHSEED" in pool.env:
                raise ValueError(f"{name}: env: with PYTHONHASHSEED nobody else knows a KV block by the same hash")
        if "prefix_match_unit" in self.engine:
            raise ValueError("engine: prefix_match_unit: the ingress knows KV blocks of block_size tokens only")

    @property
    def model_name(self) -> str:
        return self.served_model_name or Path(self.model).name

    @property
    def shared_engine(self) -> dict[str, Any]:
        """What the engine arguments of both pools and the ingress have in common."""
        return {**self.engine, "model": self.model, "prefix_caching_hash_algo": BLOCK_HASH_ALGORITHM}

    @property
    def block_size(self) -> int:
        """Tokens per KV block, as the ingress hashes prompts. A worker whose engine has chosen another size says so."""
        return int(self.engine.get("block_size", DEFAULT_BLOCK_SIZE))

    def pool(self, pool: PoolConfig) -> PoolConfig:
        """The pool's part with the shared engine arguments filled in."""
        parser = {"reasoning_parser": self.ingress.reasoning_parser} if self.ingress.reasoning_parser else {}
        served = {"served_model_name": [self.model_name]}
        return msgspec.structs.replace(pool, engine={**self.shared_engine, **served, **parser, **pool.engine})


def parse(args: dict[str, Any]) -> AppConfig:
    """Raises ValueError with the path of the offending key."""
    try:
        return msgspec.convert(args, AppConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid args in the Serve config: {error}") from error


def resolve_model(model: str) -> str:
    """A model folder of the repository as an absolute path, wherever this node has the repository; else `model` as it
    is.
    """
    local = REPO_ROOT / model
    return str(local) if local.is_dir() else model
