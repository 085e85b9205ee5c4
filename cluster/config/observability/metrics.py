"""The config section `metrics:`."""

from typing import Annotated

import msgspec
from msgspec import Meta


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is on the page of metrics beside what is always there (docs/metrics.md)."""

    tenants: bool = False
    """Whether requests, tokens and goodput are also counted by tenant. Whoever reads the page then sees the names of
    tenants and what each uses, which the admin API shows operators in any case.
    """
    max_tenants: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """Tenants that an ingress replica counts by name, those whose requests it closes first. All others count as
    `other`. Each takes some 15 series of each replica; fewer leave more tenants without a name.
    """
    engine_mfu: bool = False
    """Whether engines estimate the floating-point operations and the bytes of each step (vLLM's `enable_mfu_metrics`),
    for the arithmetic intensity and the use of the memory bandwidth. It takes the engine's core some time in each step.
    """
    kv_residency: bool = True
    """Whether engines measure how long KV blocks live, lie idle and wait for their next use, on one block in a hundred
    (vLLM's `kv_cache_metrics`).
    """

    @property
    def engine_arguments(self) -> dict[str, bool]:
        """vLLM's engine arguments. Those of the sections `engine`, `prefill` and `decode` count more."""
        return {"enable_mfu_metrics": self.engine_mfu, "kv_cache_metrics": self.kv_residency}
