"""Limits as operators write them, and the buckets that come of them."""

from typing import Any

import pytest

from api.identity.caller import Caller
from api.limits.limits import (
    FIELDS,
    MOST_COST,
    MOST_TOKENS,
    Amounts,
    LimitKind,
    LimitScope,
    ScopeKind,
    buckets_of,
    parsed_limits,
)
from cluster.config.tenants.limits import Limits
from cluster.errors import InvalidRequest

CALLER = Caller(
    tenant="0123456789abcdef", project="proj_1", key="key_2", key_lineage="key_1", end_user="bob@example.com"
)


def hashed(text: str) -> str:
    return f"h{len(text)}"


def test_each_limit_counts_something_else_and_says_what_it_counts() -> None:
    assert len({(kind.measure, kind.span) for kind in LimitKind}) == len(LimitKind) == len(FIELDS)
    assert set(FIELDS.values()) == set(Limits.__struct_fields__)


def test_limits_of_json() -> None:
    assert parsed_limits({"requests_per_minute": 60, "tokens_per_day": None}) == Limits(
        requests_per_minute=60, tokens_per_day=None
    )


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"rpm": 60}, "unknown field `rpm`. Limits are whole numbers, or null for no limit: requests_per_minute"),
        ({"requests_per_minute": 0}, ">= 1"),
        ({"requests_per_minute": "60"}, "got `str`"),
        ({"tokens_per_minute": 1.5}, "got `float`"),
        ({"tokens_per_minute": True}, "got `bool`"),
        ({"concurrent_requests": -1}, ">= 1"),
        ({"cost_per_month": 10**16}, "<= 1000000000000000"),
        ([], "got `array`"),
    ],
)
def test_error_says_what_is_wrong_and_what_there_is(value: Any, what: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed_limits(value, "key.limits")
    assert what in str(refused.value)
    assert refused.value.param == "key.limits"


def test_missing_limit_has_the_default_and_null_sets_none() -> None:
    defaults = Limits(requests_per_minute=1, tokens_per_minute=2, concurrent_requests=3)
    own = Limits(tokens_per_minute=None, concurrent_requests=4)
    assert own.over(defaults) == Limits(requests_per_minute=1, tokens_per_minute=None, concurrent_requests=4)


def test_buckets_are_those_of_all_scopes_that_the_request_has() -> None:
    limits = {
        ScopeKind.KEY: Limits(requests_per_minute=60, tokens_per_minute=None),
        ScopeKind.PROJECT: Limits(),
        ScopeKind.TENANT: Limits(cost_per_month=0, concurrent_requests=5),
        ScopeKind.MODEL: Limits(tokens_per_day=7),
    }
    found = [(bucket.scope, bucket.kind, bucket.capacity) for bucket in buckets_of(CALLER, "m", limits, hashed)]
    assert found == [
        (LimitScope(ScopeKind.KEY, "key_1"), LimitKind.REQUESTS, 60),
        (LimitScope(ScopeKind.TENANT, CALLER.tenant), LimitKind.CONCURRENT, 5),
        (LimitScope(ScopeKind.TENANT, CALLER.tenant), LimitKind.COST_PER_MONTH, 0),
        (LimitScope(ScopeKind.MODEL, "m"), LimitKind.TOKENS_PER_DAY, 7),
    ]
    of_tenant = buckets_of(CALLER, "m", {ScopeKind.TENANT: limits[ScopeKind.TENANT]}, hashed)
    assert buckets_of(Caller(tenant=CALLER.tenant), "", limits, hashed) == of_tenant


def test_names_have_the_tenant_as_hash_tag_and_no_text_of_a_client() -> None:
    limits = dict.fromkeys(ScopeKind, Limits(requests_per_minute=1))
    names = {bucket.scope.kind.value: bucket.name for bucket in buckets_of(CALLER, "m", limits, hashed)}
    assert names == {
        "key": "baton:limits:{0123456789abcdef}:key:key_1",
        "project": "baton:limits:{0123456789abcdef}:project:proj_1",
        "tenant": "baton:limits:{0123456789abcdef}:tenant:0123456789abcdef",
        "end_user": "baton:limits:{0123456789abcdef}:end_user:h15",
        "model": "baton:limits:{0123456789abcdef}:model:h1",
    }


def test_amounts_of_a_request_are_bounded() -> None:
    assert Amounts(1, 10**20, 10**20).bounded() == Amounts(1, MOST_TOKENS, MOST_COST)
    assert Amounts(-1, -5, -5).bounded() == Amounts(0, 0, 0)


def test_each_limit_has_its_amount() -> None:
    amounts = {kind.value: Amounts(1, 20, 300).of(kind) for kind in LimitKind}
    assert amounts == {"r": 1, "t": 20, "c": 1, "td": 20, "tm": 20, "cd": 300, "cm": 300}
