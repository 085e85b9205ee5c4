"""The counters of single limits: what they give back is never more than what would be left without the request."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.limits.counters import (
    DAY_MS,
    MINUTE_MS,
    MOST_COUNTED,
    MOST_MARKS,
    BudgetWindow,
    RateBucket,
    window_end_ms,
    window_of,
    window_start_ms,
)
from api.limits.limits import LimitKind

CAPACITY = 10
EPOCH = date(1970, 1, 1)

STEPS = st.tuples(
    st.integers(0, 40_000) | st.just(0), st.integers(1, CAPACITY), st.integers(0, CAPACITY), st.integers(1, 6)
)
"""The time before a request, what it reserves, what it uses, and after how many further requests it is settled."""


def debt_of(requests: list[tuple[int, int]], now_ms: int) -> int:
    """What a bucket has given out that has known from the start what each request uses."""
    debt, at_ms = 0, 0
    for taken_at_ms, amount in [*requests, (now_ms, 0)]:
        debt = max(0, debt - CAPACITY * (taken_at_ms - at_ms)) + amount * MINUTE_MS
        at_ms = taken_at_ms
    return debt


def run(steps: list[tuple[int, int, int, int]]) -> list[tuple[int, int]]:
    """Returns the debt after each step, and the debt of a bucket that has known what requests use."""
    bucket, now_ms = RateBucket(CAPACITY, 0), 0
    requests: list[tuple[int, int]] = []
    due: dict[int, list[tuple[int, int, int]]] = {}
    debts = []
    for number, (pause_ms, reserved, used, later) in enumerate(steps):
        now_ms += pause_ms
        bucket.advance(now_ms)
        for index, own_reserved, own_used in due.pop(number, []):
            taken_at_ms = requests[index][0]
            requests[index] = (taken_at_ms, own_used)
            bucket.give_back((own_reserved - own_used) * MINUTE_MS, taken_at_ms)
        if bucket.wait_ms(reserved) == 0:
            requests.append((now_ms, reserved))
            bucket.charge(reserved * MINUTE_MS)
            due.setdefault(number + later, []).append((len(requests) - 1, reserved, min(used, reserved)))
        debts.append((bucket.debt, debt_of(requests, now_ms)))
    return debts


@given(st.lists(STEPS, max_size=MOST_MARKS))
def test_settled_request_counts_as_if_its_use_had_been_known(steps: list[tuple[int, int, int, int]]) -> None:
    for debt, ideal in run(steps):
        assert debt == ideal


@given(st.lists(STEPS, max_size=60))
def test_bucket_that_has_forgotten_low_points_gives_back_less_and_never_more(
    steps: list[tuple[int, int, int, int]],
) -> None:
    for debt, ideal in run(steps):
        assert debt >= ideal


def test_refund_saves_nothing_up() -> None:
    """Requests that are reserved, kept open while the bucket fills up, and given back at once bring no burst."""
    bucket = RateBucket(CAPACITY, 0)
    for minute in range(5):
        bucket.advance(minute * MINUTE_MS)
        bucket.charge(CAPACITY * MINUTE_MS)
    bucket.advance(5 * MINUTE_MS)
    bucket.charge(CAPACITY * MINUTE_MS)
    for minute in range(5):
        bucket.give_back(CAPACITY * MINUTE_MS, minute * MINUTE_MS)
    assert bucket.room().remaining == 0


def test_bucket_gets_back_its_capacity_in_a_minute() -> None:
    bucket = RateBucket(CAPACITY, 0)
    bucket.charge(CAPACITY * MINUTE_MS)
    assert (bucket.room(), bucket.wait_ms(1), bucket.wait_ms(CAPACITY)) == ((0, MINUTE_MS), 6000, MINUTE_MS)
    bucket.advance(5999)
    assert (bucket.room().remaining, bucket.wait_ms(1)) == (0, 1)
    bucket.advance(6000)
    assert (bucket.room().remaining, bucket.wait_ms(1)) == (1, 0)
    bucket.advance(MINUTE_MS)
    assert bucket.room() == (CAPACITY, 0)


def test_clock_that_goes_back_gives_nothing() -> None:
    bucket = RateBucket(CAPACITY, MINUTE_MS)
    bucket.charge(CAPACITY * MINUTE_MS)
    bucket.advance(0)
    bucket.advance(MINUTE_MS)
    assert bucket.room().remaining == 0


def test_counts_stay_in_the_range_of_exact_numbers() -> None:
    bucket, window = RateBucket(CAPACITY, 0), BudgetWindow(0)
    bucket.charge(10 * MOST_COUNTED)
    window.add(10 * MOST_COUNTED)
    assert bucket.debt == window.used == MOST_COUNTED
    window.add(-11 * MOST_COUNTED)
    assert window.used == 0


@given(st.integers(0, 100_000))
def test_months_are_those_of_the_calendar(day: int) -> None:
    found, at_ms = EPOCH + timedelta(days=day), day * DAY_MS + 12345
    assert window_of(LimitKind.TOKENS_PER_MONTH, at_ms) == found.year * 12 + found.month - 1
    first = found.replace(day=1)
    next_one = (first + timedelta(days=31)).replace(day=1)
    assert window_start_ms(LimitKind.COST_PER_MONTH, at_ms) == (first - EPOCH).days * DAY_MS
    assert window_end_ms(LimitKind.COST_PER_MONTH, at_ms) == (next_one - EPOCH).days * DAY_MS


@pytest.mark.parametrize("kind", [LimitKind.TOKENS_PER_DAY, LimitKind.COST_PER_DAY])
def test_days_are_those_of_utc(kind: LimitKind) -> None:
    assert [window_of(kind, at_ms) for at_ms in (0, DAY_MS - 1, DAY_MS)] == [0, 0, 1]
    assert (window_start_ms(kind, DAY_MS + 5), window_end_ms(kind, DAY_MS + 5)) == (DAY_MS, 2 * DAY_MS)
