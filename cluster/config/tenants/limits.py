"""The config section `limits:`, and the limits of one scope, which accounts have, too."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

MOST_PER_MINUTE = 10**9
"""Highest limit per minute. Higher ones leave the range of exact integers in Redis's scripts (2**53); lower ones would
refuse limits that large clusters need.
"""
MOST_CONCURRENT = 10**6
"""Highest limit of concurrent requests. A higher one lets a scope keep more entries in Redis; a lower one would refuse
limits that large clusters need.
"""
MOST_BUDGET = 10**15
"""Highest budget of tokens, or of micro-units of the currency. Higher ones leave the range of exact integers in Redis's
scripts; lower ones would refuse budgets that are meant as none.
"""

_PerMinute = Annotated[int, Meta(ge=1, le=MOST_PER_MINUTE)] | UnsetType | None
_Concurrent = Annotated[int, Meta(ge=1, le=MOST_CONCURRENT)] | UnsetType | None
_Budget = Annotated[int, Meta(ge=0, le=MOST_BUDGET)] | UnsetType | None


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one scope may use: a key, a project, a tenant, an end user of a tenant, or a model of a tenant. A limit that
    is missing has the value of the defaults. `null` sets no limit. A higher limit leaves more room to one scope, at the
    cost of the others; a lower limit refuses more of its requests.
    """

    requests_per_minute: _PerMinute = UNSET
    """Requests, as a token bucket: as many may come at once, and the bucket is full again after a minute."""
    tokens_per_minute: _PerMinute = UNSET
    """Tokens of prompts and answers, as a token bucket. A request whose tokens are more than the limit is refused for
    good.
    """
    concurrent_requests: _Concurrent = UNSET
    """Requests that are open at the same time."""
    tokens_per_day: _Budget = UNSET
    """Tokens of prompts and answers of a day in UTC. 0 refuses all requests."""
    tokens_per_month: _Budget = UNSET
    """Tokens of prompts and answers of a calendar month in UTC. 0 refuses all requests."""
    cost_per_day: _Budget = UNSET
    """Cost of a day in UTC, in micro-units of the currency of the prices."""
    cost_per_month: _Budget = UNSET
    """Cost of a calendar month in UTC, in micro-units of the currency of the prices."""

    def over(self, defaults: "Limits") -> "Limits":
        """These limits, with those of `defaults` where one is missing."""
        if self == _NOTHING:
            return defaults
        if defaults == _NOTHING:
            return self
        own = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.structs.replace(defaults, **{name: value for name, value in own.items() if value is not UNSET})


_NOTHING = Limits()


class LimitDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of each scope that has none of its own."""

    key: Limits = Limits()
    """Of each API key."""
    project: Limits = Limits()
    """Of each project, over all of its keys."""
    tenant: Limits = Limits()
    """Of each tenant, over all of its projects."""
    end_user: Limits = Limits()
    """Of each end user of a tenant: the one of the request's token, or else the field `safety_identifier` or `user`.
    The tenant's client chooses these fields, so such a limit divides what the tenant has, and protects nobody against
    the tenant.
    """
    model: Limits = Limits()
    """Of each tenant for each model."""


def refusal_without_prices(limits: Mapping[str, object]) -> str | None:
    """Why limits by name cannot hold where nothing has a price. None if they can."""
    for name in ("cost_per_day", "cost_per_month"):
        if isinstance(limits.get(name), int):
            return f"{name} would never bind, since nothing has a price: set metering.prices, or limit tokens"
    return None


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients may use, and what holds while Redis, which counts it, is away."""

    defaults: LimitDefaults = LimitDefaults()
    """A limit of cost needs `metering.prices`."""
    assumed_output_tokens: Annotated[int, Meta(ge=1, le=MOST_PER_MINUTE)] = 4096
    """Tokens of output that limits reserve for each answer of a request that names no maximum, in place of all tokens
    that fit after the prompt. What the answer really takes is counted when it has ended. More refuses such requests
    where a limit has room for ordinary answers only; fewer lets requests that run at the same time exceed a limit by
    more, each by what its answers take beyond this.
    """
    reservation_s: Annotated[float, Meta(ge=3, le=3600)] = 60.0
    """Time after which a reservation ends that its ingress replica no longer renews, in seconds. It is renewed three
    times in it. Longer holds back for longer what the requests of a dead replica had reserved; shorter costs more calls
    to Redis, and forgets requests of a replica that stands still for a moment.
    """
    budgets_without_redis_s: Annotated[float, Meta(ge=0, le=86400)] | None = 600.0
    """Time for which requests with a budget are still admitted while Redis is away, in seconds. Limits per minute and
    of concurrent requests go on for the whole outage, because the shares of all replicas are no more than the limit.
    Budgets do not: what the other replicas spend is not known, so the possible error grows with the outage. Longer
    bridges longer outages, and lets a budget be exceeded by more; shorter refuses paying clients sooner. 0 refuses at
    once; `null` never refuses for that.
    """

    def refusal(self, *, has_prices: bool) -> str | None:
        """Why this section does not fit to a config with or without `metering.prices`. None if it does."""
        for scope in () if has_prices else self.defaults.__struct_fields__:
            if why := refusal_without_prices(msgspec.to_builtins(getattr(self.defaults, scope))):
                return f"defaults.{scope}: {why}"
        return None
