"""Requests for tests of limits."""

from itertools import count

from api.identity.caller import Caller
from api.limits.budget import Entry
from api.limits.limits import Amounts, Bucket, ScopeKind, buckets_of
from cluster.config.tenants.limits import Limits

TENANT = "0123456789abcdef"
_NUMBERS = count()


def buckets(**limits: Limits) -> tuple[Bucket, ...]:
    """Of a request with these limits by scope: `buckets(key=Limits(...))`."""
    caller = Caller(tenant=TENANT, project="proj_1", key="key_1", key_lineage="key_1", end_user="u")
    return buckets_of(caller, "m", {ScopeKind(name): found for name, found in limits.items()}, str)


def entry(tokens: int = 0, cost: int = 0, /, **limits: Limits) -> Entry:
    """Taken at 0."""
    return Entry(f"r{next(_NUMBERS)}", 0, buckets(**limits), Amounts(1, tokens, cost))
