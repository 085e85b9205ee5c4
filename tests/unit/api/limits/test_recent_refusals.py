"""A limit that had no room a moment ago refuses further requests at once, and no others."""

import pytest

from api.limits import recent_refusals
from api.limits.budget import Denied
from api.limits.counters import Room
from api.limits.limits import Bucket
from api.limits.recent_refusals import REMEMBERED_S, RecentRefusals
from cluster.config.tenants.limits import Limits
from cluster.errors import QuotaExceeded, RateLimited
from tests.expected import of_kind
from tests.unit.api.limits.a_request import buckets

REQUESTS = buckets(key=Limits(requests_per_minute=2), tenant=Limits(tokens_per_minute=1000))
OTHER_KEY = buckets(project=Limits(requests_per_minute=2))
BUDGET = buckets(tenant=Limits(tokens_per_day=100))


def shut(which: tuple[Bucket, ...], wait_ms: int = 30_000, remaining: int = 0) -> Denied:
    """The first limit has no room."""
    return Denied(0, [Room(remaining, 60_000)] * len(which), 0, wait_ms)


def test_limit_of_requests_refuses_until_it_has_room_or_was_not_asked_for_long() -> None:
    refusals = RecentRefusals()
    assert refusals.of(REQUESTS, 10.0) is None
    refusals.note(REQUESTS, shut(REQUESTS), 10.0)
    error = of_kind(RateLimited, refusals.of(REQUESTS, 10.5))
    assert (error.retry_after_s, error.error_type) == (29.5, "requests")
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert refusals.of(OTHER_KEY, 10.5) is None
    assert refusals.of(REQUESTS, 10.0 + REMEMBERED_S) is None
    refusals.note(REQUESTS, shut(REQUESTS, wait_ms=100), 20.0)
    assert refusals.of(REQUESTS, 20.05) is not None
    assert refusals.of(REQUESTS, 20.1) is None


def test_budget_that_is_spent_refuses_and_one_with_something_left_does_not() -> None:
    refusals = RecentRefusals()
    refusals.note(BUDGET, shut(BUDGET, remaining=1), 10.0)
    assert refusals.of(BUDGET, 10.0) is None
    refusals.note(BUDGET, shut(BUDGET), 10.0)
    assert isinstance(refusals.of(BUDGET, 10.0), QuotaExceeded)
    assert refusals.of(buckets(tenant=Limits(tokens_per_day=200)), 10.0) is None, "its limit was raised"


@pytest.mark.parametrize(
    "limits", [Limits(tokens_per_minute=10), Limits(concurrent_requests=1)], ids=["tokens", "open"]
)
def test_limit_that_may_have_room_for_a_smaller_or_a_later_request_is_not_remembered(limits: Limits) -> None:
    refusals, which = RecentRefusals(), buckets(key=limits)
    refusals.note(which, shut(which), 10.0)
    assert refusals.of(which, 10.0) is None


def test_oldest_limits_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_refusals, "MOST_REMEMBERED", 2)
    refusals = RecentRefusals()
    several = [buckets(key=Limits(requests_per_minute=number)) for number in (1, 2, 3)]
    for which in several:
        refusals.note(which, shut(which), 10.0)
    assert [refusals.of(which, 10.0) is None for which in several] == [True, False, False]
