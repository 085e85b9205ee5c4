"""What one replica grants alone."""

from itertools import count

import pytest

from api.identity.caller import Caller
from api.limits import fallback
from api.limits.budget import Denied, Entry, Granted, Unseeded
from api.limits.counters import DAY_MS, MINUTE_MS
from api.limits.fallback import LocalShares
from api.limits.limits import Amounts, ScopeKind, buckets_of
from cluster.config.tenants.limits import Limits
from tests.unit.api.limits.a_request import TENANT, entry

LIFETIME_MS = 60_000
NOW_MS = 1000
DAY = Limits(tokens_per_day=1000)
_NUMBERS = count()


@pytest.fixture
def shares() -> LocalShares:
    """Of one of four replicas."""
    return LocalShares(4)


def num_granted(shares: LocalShares, asked: Entry, now_ms: int = NOW_MS, seeds: dict[int, int] | None = None) -> int:
    """How many such requests are granted, up to the first one that is not."""
    for number in range(1000):
        one = asked._replace(id=f"n{next(_NUMBERS)}")
        if not isinstance(shares.reserve(TENANT, one, LIFETIME_MS, now_ms, seeds), Granted):
            return number
    raise AssertionError("it grants without an end")


def test_share_is_the_limit_by_the_number_of_replicas_rounded_down(shares: LocalShares) -> None:
    assert num_granted(shares, entry(key=Limits(requests_per_minute=11))) == 2
    assert num_granted(shares, entry(tenant=Limits(concurrent_requests=8))) == 2
    assert num_granted(shares, entry(10, tenant=DAY)) == 25


@pytest.mark.parametrize(
    "limits", [Limits(requests_per_minute=3), Limits(concurrent_requests=3), Limits(tokens_per_minute=399)]
)
def test_request_that_no_share_can_hold_is_not_decided(shares: LocalShares, limits: Limits) -> None:
    assert shares.reserve(TENANT, entry(100, key=limits), LIFETIME_MS, NOW_MS, None) is None


@pytest.mark.parametrize(("spent", "number"), [(0, 25), (600, 10), (1000, 0), (5000, 0)])
def test_share_of_a_budget_is_of_what_is_left(shares: LocalShares, spent: int, number: int) -> None:
    asked = entry(10, key=DAY)
    assert isinstance(shares.reserve(TENANT, asked, LIFETIME_MS, NOW_MS, {}), Unseeded)
    assert num_granted(shares, asked, NOW_MS, {0: spent}) == number


def test_spent_budget_refuses_even_what_takes_nothing(shares: LocalShares) -> None:
    assert isinstance(shares.reserve(TENANT, entry(0, key=Limits(cost_per_day=0)), LIFETIME_MS, NOW_MS, {0: 0}), Denied)
    assert isinstance(shares.reserve(TENANT, entry(0, tenant=DAY), LIFETIME_MS, NOW_MS, {0: 1001}), Denied)


def test_new_day_has_a_share_of_the_whole_budget(shares: LocalShares) -> None:
    asked = entry(10, key=DAY)
    assert num_granted(shares, asked, DAY_MS - 1, {0: 600}) == 10
    assert num_granted(shares, asked, DAY_MS, {0: 600}) == 25


def test_outage_that_follows_soon_renews_no_share_of_a_minute(shares: LocalShares) -> None:
    asked = entry(key=Limits(requests_per_minute=40))
    shares.begin(NOW_MS)
    assert num_granted(shares, asked) == 10
    shares.begin(2000)
    assert num_granted(shares, asked, 2000) == 0
    shares.begin(2001 + 2 * MINUTE_MS)
    assert num_granted(shares, asked, 2000 + 2 * MINUTE_MS + 1) == 10


def test_each_outage_asks_the_ledger_again(shares: LocalShares) -> None:
    asked = entry(10, key=DAY)
    assert num_granted(shares, asked, NOW_MS, {0: 600}) == 10
    shares.begin(2000)
    assert isinstance(shares.reserve(TENANT, asked, LIFETIME_MS, 2000, {}), Unseeded)
    assert num_granted(shares, asked, 2000, {0: 700}) == 7


def test_share_without_a_ledger_is_not_renewed_by_an_outage_that_follows_soon(shares: LocalShares) -> None:
    asked = entry(10, key=DAY)
    assert num_granted(shares, asked) == 25
    shares.begin(2000)
    assert num_granted(shares, asked, 2000) == 0


def test_settled_request_counts_what_it_has_used(shares: LocalShares) -> None:
    asked = entry(250, key=DAY)
    assert isinstance(shares.reserve(TENANT, asked, LIFETIME_MS, NOW_MS, None), Granted)
    shares.renew(TENANT, asked, LIFETIME_MS, LIFETIME_MS - 1)
    assert isinstance(shares.reserve(TENANT, entry(1, key=DAY), LIFETIME_MS, LIFETIME_MS, None), Denied)
    shares.settle(TENANT, asked, Amounts(1, 50), LIFETIME_MS)
    assert num_granted(shares, entry(10, key=DAY), LIFETIME_MS) == 20


def of_user(user: int, tenant: str = TENANT, **limits: Limits) -> Entry:
    """A request of an end user, with limits by scope."""
    caller = Caller(tenant=tenant, project="p", key="k", key_lineage="k", end_user=f"u{user}")
    found = buckets_of(caller, "m", {ScopeKind(name): own for name, own in limits.items()}, str)
    return Entry(f"{tenant}-{user}", 0, found, Amounts(1, 1))


def test_tenant_that_makes_up_end_users_takes_no_room_of_another_one(
    shares: LocalShares, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "MOST_END_USERS", 5)
    own = Limits(requests_per_minute=4)
    for user in range(100):
        shares.reserve("loud", of_user(user, "loud", end_user=own), LIFETIME_MS, NOW_MS, None)
    quiet = of_user(1, end_user=own, key=own)
    assert isinstance(shares.reserve(TENANT, quiet, LIFETIME_MS, NOW_MS, None), Granted)
    assert isinstance(shares.reserve(TENANT, quiet._replace(id="2"), LIFETIME_MS, NOW_MS, None), Denied)


def test_end_users_beyond_the_most_count_as_one_and_the_others_go_on(
    shares: LocalShares, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "MOST_END_USERS", 2)
    own = Limits(requests_per_minute=8)  # 2 of one replica

    def grants(user: int, id: str, now_ms: int = NOW_MS) -> bool:
        asked = of_user(user, end_user=own)._replace(id=id)
        return isinstance(shares.reserve(TENANT, asked, LIFETIME_MS, now_ms, None), Granted)

    assert [grants(user, f"a{user}") for user in range(6)] == [True, True, True, True, False, False]
    assert [grants(user, f"b{user}") for user in range(2)] == [True, True]
    assert grants(7, "c", NOW_MS + 3 * MINUTE_MS)


def test_tenants_are_bounded(shares: LocalShares, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "MOST_TENANTS", 2)
    for tenant in ("a", "b"):
        assert isinstance(shares.reserve(tenant, of_user(1, tenant, key=DAY), LIFETIME_MS, NOW_MS, None), Granted)
    assert shares.reserve("c", of_user(1, "c", key=DAY), LIFETIME_MS, NOW_MS, None) is None
    assert isinstance(shares.reserve("a", of_user(2, "a", model=DAY), LIFETIME_MS, NOW_MS, None), Granted)
