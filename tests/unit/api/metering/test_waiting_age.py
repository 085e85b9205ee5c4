from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from api.metering.waiting_age import GAP_SHARE, LEAST_GAP_S, WaitingAge

EVENTS = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5), st.integers(0, 5)), max_size=60)
"""Seconds that pass, things that come then, and things that go."""


@given(EVENTS)
def test_age_is_that_of_the_oldest_or_a_little_more(events: list[tuple[float, int, int]]) -> None:
    ages, waiting, now = WaitingAge(), deque[float](), 0.0
    for seconds, come, gone in events:
        now += seconds
        for _ in range(come):
            waiting.append(now)
            ages.come(now)
        gone = min(gone, len(waiting))
        for _ in range(gone):
            waiting.popleft()
        ages.gone(gone)
        age_s = ages.age_s(now)
        if not waiting:
            assert age_s == 0.0
            continue
        true_s = now - waiting[0]
        assert true_s - 1e-6 <= age_s <= true_s + LEAST_GAP_S + GAP_SHARE * now


def test_week_of_outage_takes_little_memory_however_much_comes() -> None:
    ages = WaitingAge()
    for second in range(0, 7 * 86400, 2):
        ages.come(float(second))
    assert ages.num_kept < 1100
    assert ages.age_s(7 * 86400.0) == 7 * 86400
