"""What the `args:` of a Serve config may say. Parsed once, strictly, when the application is built.

An unknown key or a value out of range fails there, with its path. Each deployment receives its own part and nothing
else.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from cluster.config.context import ContextConfig
from cluster.config.ingress import IngressConfig
from cluster.config.network import LOOPBACK, NetworkConfig, is_loopback
from cluster.config.pools import BLOCK_HASH_ALGORITHM, DEFAULT_BLOCK_SIZE, PoolConfig
from cluster.config.state import StateConfig
from cluster.slo import SloConfig

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

_BATON_SETS = frozenset(
    {"model", "kv_transfer_config", "served_model_name", "kv_events_config", "prefix_caching_hash_algo"}
)
_HASHED_ALIKE = frozenset({"block_size", "prefix_match_unit"})
"""What the ingress and all engines must agree on to know a prompt's KV blocks by the same hashes."""


class AppConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole application."""

    model: str
    """A Hugging Face model folder (relative ones are looked up in the repository first) or hub name."""
    served_model_name: str | None = None
    """The name that clients use. None: the last part of `model`."""
    log_level: LogLevel = "WARNING"
    """vLLM's log level in every process, and the level of Baton's own records, whose warnings are logged at any level.
    Lower writes more lines per request; higher hides what vLLM warns of at each start.
    """
    engine: dict[str, Any] = {}
    """vLLM engine arguments shared by both pools and the ingress: max_model_len, dtype, block_size, ..."""
    prefill: PoolConfig = PoolConfig()
    decode: PoolConfig = PoolConfig()
    ingress: IngressConfig = IngressConfig()
    network: NetworkConfig = NetworkConfig()
    state: StateConfig = StateConfig()
    context: ContextConfig = ContextConfig()
    slo: SloConfig = SloConfig()
    """This model's objectives, by SLO class (docs/slo.md)."""

    def __post_init__(self) -> None:
        for name, engine in (("engine", self.engine), ("prefill", self.prefill.engine), ("decode", self.decode.engine)):
            if owned := engine.keys() & _BATON_SETS:
                raise ValueError(f"{name}: {', '.join(sorted(owned))} cannot be set here, Baton sets it")
            if engine.get("nnodes", 1) != 1:
                raise ValueError(f"{name}: nnodes: an engine must be on one machine, whose clock its handoffs need")
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

    @property
    def internal_host(self) -> str | None:
        """Where the processes listen for each other: an address, an interface, or None for each node's own address."""
        if self.network.host is None and is_loopback(self.ingress.host):
            return LOOPBACK
        return self.network.host

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
