import pytest

from cluster.messages.ids import SloClass
from router.admission.retry_after import MOST_RETRY_S, Rate, RetrySlots


def test_rate_is_a_mean_since_the_first() -> None:
    rate = Rate(30.0)
    assert rate.per_s(5.0) == 0.0
    for number in range(101):
        rate.note(100.0 + number / 10)
        if number >= 10:
            assert rate.per_s(100.0 + number / 10) == pytest.approx(10.0, rel=0.15)


def test_rate_forgets() -> None:
    rate = Rate(2.0)
    for number in range(1000):
        rate.note(number / 10)
    assert rate.per_s(100.0) == pytest.approx(10.0, rel=0.1)
    assert rate.per_s(120.0) < 0.01


def test_each_slot_is_behind_those_that_were_given_before() -> None:
    slots = RetrySlots()
    for number in range(100):
        slots.admitted(number / 10)
    waits_s = [slots.take(SloClass.STANDARD, 1.0, 10.0) for _ in range(20)]
    assert waits_s == sorted(set(waits_s))
    assert waits_s[0] == 1.0


def test_no_slot_is_later_than_the_longest_wait() -> None:
    slots = RetrySlots()
    for _ in range(10):
        assert slots.take(SloClass.BATCH, 1e9, 0.0) == MOST_RETRY_S
