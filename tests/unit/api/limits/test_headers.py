"""What clients are told of their limits."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.limits.budget import BUSY_MS, Denied
from api.limits.counters import DAY_MS, Room
from api.limits.headers import duration_text, rate_limit_headers, refusal
from api.limits.limits import Amounts
from api.wire.errors import error_body, error_headers
from cluster.config.tenants.limits import Limits
from cluster.errors import InvalidRequest, QuotaExceeded, RateLimited
from tests.expected import of_kind
from tests.unit.api.limits.a_request import buckets

MINUTE = Limits(requests_per_minute=60, tokens_per_minute=1000)
IN_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (250, "250ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (12_345, "12.345s"),
        (60_000, "1m0s"),
        (360_000, "6m0s"),
        (3_600_000, "1h0m0s"),
        (90_061_001, "25h1m1.001s"),
    ],
)
def test_durations_are_written_as_go_does(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text


@given(st.integers(0, 10**11))
def test_durations_lose_nothing(milliseconds: int) -> None:
    parts = re.findall(r"([\d.]+)(ms|h|m|s)", duration_text(milliseconds))
    assert math.isclose(sum(float(number) * IN_UNITS[unit] for number, unit in parts), milliseconds / 1000)


def test_headers_are_those_of_the_scope_that_has_the_least_left() -> None:
    which = buckets(key=MINUTE, tenant=Limits(requests_per_minute=10, tokens_per_minute=9000, concurrent_requests=1))
    rooms = [Room(7, 1000), Room(500, 30_000), Room(6, 24_000), Room(8000, 5), Room(0, 0)]
    assert rate_limit_headers(which, rooms) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "6",
        "x-ratelimit-reset-requests": "24s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "500",
        "x-ratelimit-reset-tokens": "30s",
    }


def test_limit_that_is_none_has_no_headers() -> None:
    which = buckets(key=Limits(tokens_per_minute=5, cost_per_day=7))
    assert set(rate_limit_headers(which, [Room(5, 0), Room(7, 1)])) == {
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    }


@pytest.mark.parametrize(("binding", "kind"), [(0, "requests"), (1, "tokens"), (2, "requests")])
def test_limit_that_has_no_room_now_says_when_to_come_back(binding: int, kind: str) -> None:
    which = buckets(key=Limits(requests_per_minute=60, tokens_per_minute=1000, concurrent_requests=5))
    denied = Denied(0, [Room(0, 60_000), Room(20, 58_800), Room(0, 0)], binding, 6_000)
    error = of_kind(RateLimited, refusal(which, denied, Amounts(1, 120)))
    assert error.http_status == 429
    assert error_body(error)["error"] | {"message": ""} == {
        "message": "",
        "type": kind,
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert error_headers(error)["retry-after"] == "6"
    assert error_headers(error)["x-ratelimit-remaining-tokens"] == "20"
    assert "rate limit of this key reached" in str(error) and "Try again in 6s" in str(error)


def test_budget_that_is_spent_invites_no_retry() -> None:
    which = buckets(end_user=Limits(tokens_per_day=1000))
    error = of_kind(QuotaExceeded, refusal(which, Denied(0, [Room(20, DAY_MS // 2)], 0, DAY_MS // 2), Amounts(1, 120)))
    assert error.http_status == 429
    assert (error_body(error)["error"]["type"], error.code) == ("insufficient_quota", "insufficient_quota")
    assert error_headers(error) == {"x-should-retry": "false"}
    assert "the budget of this end user is spent: tokens per day: limit 1000, left 20" in str(error)
    assert "It begins anew in 12h0m0s" in str(error)


@pytest.mark.parametrize(
    ("limits", "kind"), [(Limits(tokens_per_day=9), "tokens"), (Limits(cost_per_day=9), "requests")]
)
def test_budget_that_open_requests_have_reserved_says_when_to_come_back(limits: Limits, kind: str) -> None:
    denied = Denied(0, [Room(2, DAY_MS // 2)], 0, BUSY_MS)
    error = of_kind(RateLimited, refusal(buckets(key=limits), denied, Amounts(1, 3, 3)))
    assert (error.http_status, error.code) == (429, "rate_limit_exceeded")
    assert error_body(error)["error"]["type"] == kind
    assert error_headers(error)["retry-after"] == "1" and "x-should-retry" not in error_headers(error)
    assert "requests that run have reserved the budget of this key" in str(error) and "begins anew" not in str(error)


def test_request_that_is_larger_than_a_budget_is_not_told_to_wait() -> None:
    which = buckets(key=Limits(cost_per_month=1000))
    error = refusal(which, Denied(0, [Room(1000, DAY_MS)], 0, 0), Amounts(1, 0, 1001))
    assert "larger than the whole budget" in str(error) and "begins anew" not in str(error)


def test_request_that_is_larger_than_a_limit_per_minute_can_never_be_admitted() -> None:
    which = buckets(model=Limits(tokens_per_minute=1000))
    error = of_kind(InvalidRequest, refusal(which, Denied(0, [Room(1000, 0)], 0, 0), Amounts(1, 1001)))
    assert (error.http_status, error.code, error.param) == (400, "request_exceeds_limit", "max_tokens")
    assert error_headers(error) == {}
    assert "this model may use 1000 tokens per minute" in str(error)
