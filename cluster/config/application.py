"""The `args:` of a Serve config: what they may contain, and how they are parsed.

The arguments are parsed once and strictly, when the application is built. An unknown key or a value out of range is an
error with its path. Each deployment receives its own section only.
"""

from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from cluster.config import engine_arguments
from cluster.config.cells import CellsConfig
from cluster.config.context import ContextConfig
from cluster.config.ingress import IngressConfig
from cluster.config.network import LOOPBACK, NetworkConfig, is_loopback
from cluster.config.observability.metrics import MetricsConfig
from cluster.config.observability.quality_probe import QualityProbeConfig
from cluster.config.observability.tracing import TracingConfig
from cluster.config.pools import BLOCK_HASH_ALGORITHM, DEFAULT_BLOCK_SIZE, PoolConfig
from cluster.config.safety import SafetyConfig
from cluster.config.scaling import ScalingConfig
from cluster.config.scheduler import SchedulerConfig
from cluster.config.state import StateConfig
from cluster.config.tenants.admin import AdminConfig
from cluster.config.tenants.identity import IdentityConfig
from cluster.config.tenants.limits import LimitsConfig
from cluster.config.tenants.metering import MeteringConfig
from cluster.config.tenants.public_prefixes import MAX_PREFIXES, PublicPrefixConfig
from cluster.messages.ids import CellName
from cluster.slo import SloConfig

S = TypeVar("S", PoolConfig, SchedulerConfig)
LogFormat = Literal["text", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class AppConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All `args:` of the application."""

    model: str
    """The model: a Hugging Face model folder or a hub name. A relative folder is looked up in the repository first."""
    served_model_name: str | None = None
    """The model name that clients use. If it is missing, clients use the last part of `model`."""
    log_level: LogLevel = "WARNING"
    """vLLM's log level in every process, and the level of Baton's own loggers. Baton's warnings are logged at any
    level. A lower level writes more lines per request; a higher level hides what vLLM warns about at each start.
    """
    log_format: LogFormat | None = None
    """The form of the lines of Baton's own loggers in every process: "text", or "json" for one object a line. If it is
    missing, the environment variable BATON_LOG_FORMAT of each node says it, and without that it is text.
    """
    engine: dict[str, Any] = {}
    """vLLM engine arguments that both pools and the ingress share: max_model_len, dtype, block_size, ..."""
    prefill: PoolConfig = PoolConfig()
    decode: PoolConfig = PoolConfig()
    cells: CellsConfig = CellsConfig()
    ingress: IngressConfig = IngressConfig()
    admin: AdminConfig = AdminConfig()
    identity: IdentityConfig = IdentityConfig()
    limits: LimitsConfig = LimitsConfig()
    metering: MeteringConfig = MeteringConfig()
    metrics: MetricsConfig = MetricsConfig()
    public_prefixes: Annotated[dict[str, PublicPrefixConfig], Meta(max_length=MAX_PREFIXES)] = {}
    """System prompts of the operator, by a name that errors show. Tenants that have opted in share their KV blocks."""
    network: NetworkConfig = NetworkConfig()
    state: StateConfig = StateConfig()
    context: ContextConfig = ContextConfig()
    safety: SafetyConfig = SafetyConfig()
    quality_probe: QualityProbeConfig = QualityProbeConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    scaling: ScalingConfig | None = None
    """How many workers the pools may have. If it is missing, each pool has its `replicas`."""
    tracing: TracingConfig = TracingConfig()
    slo: SloConfig = SloConfig()
    """The objectives of the served model, by SLO class (docs/slo.md)."""

    def __post_init__(self) -> None:
        if why := engine_arguments.refusal(self.engine):
            raise ValueError(f"engine: {why}")
        pools = {"prefill": self.prefill, "decode": self.decode}
        for name, pool in pools.items():
            if why := engine_arguments.refusal_of_pool(pool.engine):
                raise ValueError(f"{name}.engine: {why}")
            if "PYTHONHASHSEED" in pool.env:
                raise ValueError(
                    f"{name}: env: with PYTHONHASHSEED, engines and the ingress hash the same KV block differently"
                )
            num_devices = engine_arguments.num_devices(self.engine | pool.engine)
            if pool.gpus and num_devices is not None and pool.gpus != num_devices and max(pool.gpus, num_devices) > 1:
                raise ValueError(
                    f"{name}: gpus is {pool.gpus:g}, and an engine with these arguments takes {num_devices}: they are "
                    "tensor_parallel_size x prefill_context_parallel_size"
                )
            bounds = getattr(self.scaling, name) if self.scaling is not None else None
            if bounds is not None and not bounds.min <= pool.replicas <= bounds.max:
                raise ValueError(
                    f"{name}: replicas is {pool.replicas}, with which the pool starts, and scaling.{name} allows "
                    f"{bounds.min} to {bounds.max}"
                )
        refusals = {
            "identity": self.identity.refusal(self.ingress.host),
            "admin": self.admin.refusal(self.ingress),
            "limits": self.limits.refusal(has_prices=self.metering.prices is not None),
            "engine": engine_arguments.difference(self.engine | self.prefill.engine, self.engine | self.decode.engine),
        }
        for name, why in refusals.items():
            if why:
                raise ValueError(f"{name}: {why}")
        for name, section in {**pools, "scheduler": self.scheduler}.items():
            if self.cells.label in section.label_selector:
                raise ValueError(
                    f"{name}: label_selector: leave the label {self.cells.label!r} out, since cells.label sets it"
                )

    @property
    def model_name(self) -> str:
        return self.served_model_name or PurePath(self.model).name

    @property
    def shared_engine(self) -> dict[str, Any]:
        """The engine arguments that both pools and the ingress have in common."""
        return {**self.engine, "model": self.model, "prefix_caching_hash_algo": BLOCK_HASH_ALGORITHM}

    @property
    def block_size(self) -> int:
        """Tokens per KV block, as the ingress hashes prompts. A worker reports the block size that its engine uses."""
        return int(self.engine.get("block_size", DEFAULT_BLOCK_SIZE))

    @property
    def internal_host(self) -> str | None:
        """The host on which Baton's processes listen for each other: an address, the name of an interface, or None for
        each node's own address.
        """
        if self.network.host is None and is_loopback(self.ingress.host):
            return LOOPBACK
        return self.network.host

    @property
    def internal_network(self) -> NetworkConfig:
        """The section `network:` with `internal_host`."""
        return msgspec.structs.replace(self.network, host=self.internal_host)

    def on_nodes_of(self, cell: CellName) -> "AppConfig":
        """The config with the sections of the pools and of the Scheduler on the nodes of a cell."""
        label = self.cells.label
        if label is None:
            return self

        def labelled(section: S) -> S:
            return msgspec.structs.replace(section, label_selector={**section.label_selector, label: str(cell)})

        return msgspec.structs.replace(
            self,
            cells=msgspec.structs.replace(self.cells, label=None),
            prefill=labelled(self.prefill),
            decode=labelled(self.decode),
            scheduler=labelled(self.scheduler),
        )

    def pool(self, pool: PoolConfig) -> PoolConfig:
        """Return the pool's section with the shared engine arguments filled in."""
        parser = {"reasoning_parser": self.ingress.reasoning_parser} if self.ingress.reasoning_parser else {}
        own = {**self.metrics.engine_arguments, "served_model_name": [self.model_name], **parser}
        return msgspec.structs.replace(pool, engine={**own, **self.shared_engine, **pool.engine})


def parse(args: dict[str, Any]) -> AppConfig:
    """Parse the `args:` of a Serve config. Raises ValueError with the path of the wrong key."""
    try:
        return msgspec.convert(args, AppConfig)
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid args in the Serve config: {error}") from error
