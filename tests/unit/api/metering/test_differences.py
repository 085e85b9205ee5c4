from hypothesis import given
from hypothesis import strategies as st

from api.metering.differences import (
    OVERRUN_TOKENS,
    BudgetScope,
    EngineCount,
    Finding,
    budget_difference,
    corrections,
    groups,
    worker_difference,
)

A, B = (BudgetScope("key", "t", name, "td", False, 0.0, 1.0) for name in "ab")


def finding(counted: int, in_ledger: int, open_ended: int = 0, running: int = 0) -> Finding:
    return worker_difference(EngineCount("d0", counted, 0.0), in_ledger, open_ended, running).finding


def test_engine_and_ledger_agree_to_the_token() -> None:
    assert finding(100, 100) is Finding.EQUAL
    assert finding(101, 100) is Finding.MISSING
    assert finding(99, 100) is Finding.SURPLUS


def test_tokens_that_came_too_late_for_their_session_are_a_part_of_the_counter() -> None:
    late = EngineCount("d0", 105, 0.0, unread=5)
    assert worker_difference(late, 100, open_ended=1, running=0).finding is Finding.EQUAL
    assert worker_difference(late, 99, open_ended=0, running=0).finding is Finding.MISSING
    assert worker_difference(late, 101, open_ended=1, running=0).finding is Finding.SURPLUS


def test_what_an_engine_made_after_the_end_of_an_attempt_is_explained_up_to_a_bound() -> None:
    assert finding(100 + OVERRUN_TOKENS, 100, open_ended=1) is Finding.EXPLAINED
    assert finding(101 + OVERRUN_TOKENS, 100, open_ended=1) is Finding.MISSING
    assert finding(10**6, 100, running=1) is Finding.EXPLAINED


numbers = st.integers(-5, 5)


@given(numbers, numbers)
def test_only_what_two_looks_have_found_is_corrected(now: int, before: int) -> None:
    corrected = corrections({A: now}, {A: before}).get(A, 0)
    assert abs(corrected) == (min(abs(now), abs(before)) if now * before > 0 else 0)
    assert corrected * now >= 0


def test_difference_that_is_seen_for_the_first_time_waits() -> None:
    assert corrections({A: 5}, {B: 5}) == {}


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_counter_may_have_what_is_open_or_not_and_is_moved_to_the_nearest_of_both(
    counted: int, in_ledger: int, open_part: int
) -> None:
    lowest, highest = max(0, in_ledger - open_part), in_ledger
    after = counted + budget_difference(counted, in_ledger, min(open_part, in_ledger))
    assert after == min(max(counted, lowest), highest)


def test_scopes_of_one_kind_and_time_share_a_query() -> None:
    other = BudgetScope("tenant", "t", "", "td", False, 0.0, 1.0)
    assert groups([A, other, B]) == {("key", 0.0, 1.0): [A, B], ("tenant", 0.0, 1.0): [other]}
