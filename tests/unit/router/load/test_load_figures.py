"""What the policy knows of the load beside the workers: arrivals, stalls by prompts, and who used how much."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.admission.arrivals import ArrivalRate
from router.admission.fairness import HALF_LIFE_S, LARGEST_EXCESS, MAX_TENANTS, TenantShares
from router.load.prefill_share import MOST, WINDOWS_S, PrefillShare, share_over

gaps = st.lists(st.floats(0.0, 100.0), max_size=30)


def test_rate_of_poisson_arrivals_is_their_mean() -> None:
    chance, rate, now, seen = random.Random(1), ArrivalRate(), 0.0, []
    for number in range(3000):
        now += chance.expovariate(10.0)
        rate.note(now)
        if number > 1000:
            seen.append(rate.per_s(now))
    assert sum(seen) / len(seen) == pytest.approx(10.0, rel=0.3)


def test_rate_after_an_arrival_of_bursts_is_that_of_a_burst() -> None:
    rate, now = ArrivalRate(), 0.0
    for _ in range(60):  # 20 at once, every 20 s: one a second on average
        now += 20.0
        for number in range(20):
            rate.note(now + number * 0.01)
    now += 20.0
    rate.note(now)
    assert rate.per_s(now) == pytest.approx(9.5, rel=0.3)  # who comes in the middle of a burst finds half of it to come


def test_rate_decays_to_what_bursts_are_known_to_bring() -> None:
    rate = ArrivalRate()
    for number in range(50):
        rate.note(number * 0.01)
    during = rate.per_s(0.5)
    assert during > 10.0
    assert 0.0 < rate.per_s(100.0) < during


@given(gaps)
def test_rate_is_never_negative_and_never_more_than_all(waits: list[float]) -> None:
    rate, now = ArrivalRate(), 0.0
    for wait_s in waits:
        now += wait_s
        rate.note(now)
        assert 0.0 < rate.per_s(now) <= len(waits)


def test_prefill_share_is_the_share_of_stalls_in_each_window() -> None:
    share_of_prefill = PrefillShare()
    for number in range(600):
        share_of_prefill.note(0.02, number * 0.1)
    assert share_of_prefill.shares(60.0) == pytest.approx([0.2] * 3, rel=0.1)
    short, _, long = share_of_prefill.shares(61.0)
    assert short < long < 0.2


@given(st.lists(st.tuples(st.floats(0.0, 1e3), st.floats(0.0, 50.0)), max_size=30))
def test_prefill_share_leaves_some_time_for_decoding(stalls: list[tuple[float, float]]) -> None:
    share_of_prefill, now = PrefillShare(), 0.0
    for stall_s, wait_s in stalls:
        now += wait_s
        share_of_prefill.note(stall_s, now)
        assert all(0.0 <= share <= MOST for share in share_of_prefill.shares(now))


def test_who_looks_far_ahead_expects_the_share_of_a_long_window() -> None:
    shares = (0.1, 0.2, 0.3)
    looks = [0.0, *WINDOWS_S, 1e9]
    assert [share_over(shares, horizon_s) for horizon_s in looks] == [0.1, 0.1, 0.2, 0.3, 0.3]


def test_tenant_that_uses_twice_as_much_as_another_is_above_its_share() -> None:
    shares = TenantShares()
    shares.charge("greedy", 2.0, 1.0)
    shares.charge("modest", 1.0, 1.0)
    assert shares.excess("greedy", 1.0) == pytest.approx(4 / 3)
    assert shares.excess("modest", 1.0) == pytest.approx(2 / 3)
    assert shares.excess("new", 1.0) == 0.0


def test_tenant_that_is_alone_uses_its_share() -> None:
    shares = TenantShares()
    assert shares.excess("alone", 0.0) == 1.0
    for second in range(200):
        shares.charge("alone", 5.0, float(second))
        assert shares.excess("alone", float(second)) == pytest.approx(1.0)


def test_what_was_used_long_ago_does_not_count() -> None:
    shares = TenantShares()
    shares.charge("greedy", 100.0, 0.0)
    shares.charge("modest", 1.0, 20 * HALF_LIFE_S)
    assert shares.excess("greedy", 20 * HALF_LIFE_S) < 0.1


def test_engine_time_per_second_is_what_is_charged() -> None:
    shares = TenantShares()
    for tick in range(3000):
        shares.charge(f"tenant{tick % 3}", 0.05, tick * 0.1)
    assert shares.seconds_per_s() == pytest.approx(0.5, rel=0.1)


def test_number_of_tenants_is_bounded_and_the_least_user_goes() -> None:
    shares = TenantShares()
    shares.charge("most", 50.0, 1.0)
    for number in range(MAX_TENANTS + 5):
        shares.charge(f"tenant{number}", 1.0, 1.0)
    assert shares.excess("most", 1.0) == LARGEST_EXCESS


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 10.0), st.floats(0.0, 100.0)), max_size=40))
def test_excess_is_bounded_and_weighed_by_all_is_one(charges: list[tuple[str, float, float]]) -> None:
    shares, now = TenantShares(), 0.0
    for tenant, engine_s, wait_s in charges:
        now += wait_s
        shares.charge(tenant, engine_s, now)
        assert all(0.0 <= shares.excess(who, now) <= LARGEST_EXCESS for who in "abcd")
        assert shares.seconds_per_s() >= 0.0
