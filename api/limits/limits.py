"""Whom a limit is for, and the buckets that a request draws on. Its limits: cluster/config/tenants/limits.py. Pure."""

from collections.abc import Callable, Mapping
from enum import Enum, StrEnum, auto
from typing import Any, NamedTuple

import msgspec

from api.identity.caller import Caller
from cluster.config.tenants.limits import Limits
from cluster.errors import InvalidRequest

MOST_TOKENS, MOST_COST = 10**10, 10**12
"""Most tokens and most micro-units of cost of one request: more count as these. Higher values leave the range of exact
integers in Redis's scripts (2**53); lower ones charge large requests too little.
"""


class ScopeKind(StrEnum):
    """Who shares a limit."""

    KEY = "key"
    """An API key, with all that rotations have made of it. Its id is that of the first one."""
    PROJECT = "project"
    TENANT = "tenant"
    END_USER = "end_user"
    MODEL = "model"


class LimitScope(NamedTuple):
    """One key, project, tenant, end user of a tenant, or model of a tenant."""

    kind: ScopeKind
    id: str

    def __str__(self) -> str:
        return f"this {self.kind.replace('_', ' ')}"


class Measure(Enum):
    """What a limit counts."""

    REQUESTS = auto()
    TOKENS = auto()
    """Of prompts and answers."""
    COST = auto()
    """Micro-units of the currency."""


class Span(Enum):
    """The time for which a limit counts."""

    OPEN = auto()
    """As long as a request is open."""
    MINUTE = auto()
    DAY = auto()
    MONTH = auto()


class LimitKind(StrEnum):
    """One limit of a scope. The value is the name of its field in Redis."""

    REQUESTS = "r"
    TOKENS = "t"
    CONCURRENT = "c"
    TOKENS_PER_DAY = "td"
    TOKENS_PER_MONTH = "tm"
    COST_PER_DAY = "cd"
    COST_PER_MONTH = "cm"

    @property
    def measure(self) -> Measure:
        return _WHAT[self][0]

    @property
    def span(self) -> Span:
        return _WHAT[self][1]

    @property
    def is_per_minute(self) -> bool:
        return self.span is Span.MINUTE

    @property
    def counts_requests(self) -> bool:
        """Whether it counts requests, whatever they take, and not their tokens or cost."""
        return self in (LimitKind.REQUESTS, LimitKind.CONCURRENT)

    @property
    def is_budget(self) -> bool:
        return self.span in (Span.DAY, Span.MONTH)

    @property
    def is_cost(self) -> bool:
        return self.measure is Measure.COST

    @property
    def is_monthly(self) -> bool:
        return self.span is Span.MONTH


_NO_LIMITS = Limits()
_WHAT = {
    LimitKind.REQUESTS: (Measure.REQUESTS, Span.MINUTE),
    LimitKind.TOKENS: (Measure.TOKENS, Span.MINUTE),
    LimitKind.CONCURRENT: (Measure.REQUESTS, Span.OPEN),
    LimitKind.TOKENS_PER_DAY: (Measure.TOKENS, Span.DAY),
    LimitKind.TOKENS_PER_MONTH: (Measure.TOKENS, Span.MONTH),
    LimitKind.COST_PER_DAY: (Measure.COST, Span.DAY),
    LimitKind.COST_PER_MONTH: (Measure.COST, Span.MONTH),
}
"""What each limit counts, and for which time."""
_PLACES = {kind: None if span is Span.OPEN else list(Measure).index(measure) for kind, (measure, span) in _WHAT.items()}
"""The place in `Amounts` of what each limit counts. None where each request counts as one."""
FIELDS = {
    LimitKind.REQUESTS: "requests_per_minute",
    LimitKind.TOKENS: "tokens_per_minute",
    LimitKind.CONCURRENT: "concurrent_requests",
    LimitKind.TOKENS_PER_DAY: "tokens_per_day",
    LimitKind.TOKENS_PER_MONTH: "tokens_per_month",
    LimitKind.COST_PER_DAY: "cost_per_day",
    LimitKind.COST_PER_MONTH: "cost_per_month",
}
"""The field of `Limits` that has each limit."""


class Amounts(NamedTuple):
    """What a request uses, or may use at most."""

    requests: int = 1
    tokens: int = 0
    """Tokens of its prompts and its answers."""
    cost: int = 0
    """Micro-units of the currency."""

    def bounded(self) -> "Amounts":
        return Amounts(max(0, self.requests), min(max(0, self.tokens), MOST_TOKENS), min(max(0, self.cost), MOST_COST))

    def of(self, kind: LimitKind) -> int:
        place = _PLACES[kind]
        return 1 if place is None else self[place]


class Bucket(NamedTuple):
    """One limit of one scope. What it has given out is counted in Redis."""

    scope: LimitScope
    name: str
    """Name of the scope in Redis."""
    kind: LimitKind
    capacity: int
    """Per minute for limits per minute, per window for budgets, else at the same time."""


def parsed_limits(value: Any, where: str = "limits") -> Limits:
    """The limits in a JSON object. `where` names the object for the reader of the error. Raises InvalidRequest."""
    try:
        return msgspec.convert(value, Limits)
    except msgspec.ValidationError as error:
        allowed = f"Limits are whole numbers, or null for no limit: {', '.join(FIELDS.values())}"
        raise InvalidRequest(f"{where}: {error}. {allowed}", where, "invalid_value") from None


def tenant_prefix(tenant: str) -> str:
    """The begin of the names of a tenant in Redis. The part in braces is their hash tag: a cluster keeps them on one
    node, so that one script may touch all of them.
    """
    return f"baton:limits:{{{tenant}}}:"


def others_of(name: str) -> str | None:
    """The name under which an end user counts together with others, as reserve.lua makes it. None for other scopes."""
    prefix, is_end_user, _ = name.partition(f":{ScopeKind.END_USER}:")
    return f"{prefix}:other_end_users" if is_end_user else None


def buckets_of(
    caller: Caller, model: str, limits: Mapping[ScopeKind, Limits], hashed: Callable[[str], str]
) -> tuple[Bucket, ...]:
    """The buckets of a request, those of one scope together. A scope whose id is empty has none. `hashed`: as in
    `scope_name`.
    """
    ids = {
        ScopeKind.KEY: caller.key_lineage,
        ScopeKind.PROJECT: caller.project,
        ScopeKind.TENANT: caller.tenant,
        ScopeKind.END_USER: caller.end_user,
        ScopeKind.MODEL: model,
    }
    buckets = []
    for scope_kind, own in limits.items():
        if own == _NO_LIMITS or not (id := ids[scope_kind]):
            continue
        capacities = [(kind, getattr(own, field)) for kind, field in FIELDS.items()]
        given = [(kind, capacity) for kind, capacity in capacities if isinstance(capacity, int)]
        if given:
            scope = LimitScope(scope_kind, id)
            name = tenant_prefix(caller.tenant) + scope_name(scope, hashed)
            buckets += [Bucket(scope, name, kind, capacity) for kind, capacity in given]
    return tuple(buckets)


def scope_name(scope: LimitScope, hashed: Callable[[str], str]) -> str:
    """The end of a scope's name in Redis. `hashed`: a keyed hash of texts from clients, so that their names are short
    and cannot be guessed.
    """
    is_from_client = scope.kind in (ScopeKind.END_USER, ScopeKind.MODEL)
    return f"{scope.kind}:{hashed(scope.id) if is_from_client else scope.id}"
