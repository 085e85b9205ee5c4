"""The section `scheduler:` of the config."""

from typing import Annotated

import msgspec
from msgspec import Meta

Weight = Annotated[float, Meta(ge=0.01, le=100)]


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the Scheduler treats requests."""

    tenant_weights: dict[str, Weight] = {}
    """Weight of each named tenant in the sharing of the engines' time while requests wait. A tenant without an entry
    has the weight 1. `printf %s KEY | baton tenant` prints the name of a key's tenant. A higher weight lets the tenant
    use more of the engines' time before its requests need a better chance than those of others; a lower weight holds
    its requests back sooner.
    """
