from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.admission.fairness import HALF_LIFE_S, LARGEST_EXCESS, MAX_TENANTS, TenantShares


def test_tenant_that_uses_twice_as_much_as_another_is_above_its_share() -> None:
    shares = TenantShares()
    shares.charge("greedy", 1.0, 2.0, 1.0)
    shares.charge("modest", 1.0, 1.0, 1.0)
    assert shares.excess("greedy", 1.0, 1.0) == pytest.approx(4 / 3)
    assert shares.excess("modest", 1.0, 1.0) == pytest.approx(2 / 3)
    assert shares.excess("new", 1.0, 1.0) == 0.0


def test_tenant_that_is_alone_uses_its_share() -> None:
    shares = TenantShares()
    assert shares.excess("alone", 1.0, 0.0) == 1.0
    for second in range(200):
        shares.charge("alone", 1.0, 5.0, float(second))
        assert shares.excess("alone", 1.0, float(second)) == pytest.approx(1.0)


def test_what_was_used_long_ago_does_not_count() -> None:
    shares = TenantShares()
    shares.charge("greedy", 1.0, 100.0, 0.0)
    shares.charge("modest", 1.0, 1.0, 20 * HALF_LIFE_S)
    assert shares.excess("greedy", 1.0, 20 * HALF_LIFE_S) < 0.1


def test_engine_time_per_second_is_what_is_charged() -> None:
    shares = TenantShares()
    for tick in range(3000):
        shares.charge(f"tenant{tick % 3}", 1.0, 0.05, tick * 0.1)
    assert shares.seconds_per_s() == pytest.approx(0.5, rel=0.1)


def test_number_of_tenants_is_bounded_and_the_least_user_goes() -> None:
    shares = TenantShares()
    shares.charge("most", 1.0, 50.0, 1.0)
    shares.charge("least", 1.0, 0.5, 1.0)
    tenants = ["most", "least", *(f"tenant{number}" for number in range(MAX_TENANTS + 5))]
    for tenant in tenants[2:]:
        shares.charge(tenant, 1.0, 1.0, 1.0)
    remembered = [tenant for tenant in tenants if shares.excess(tenant, 1.0, 1.0) > 0.0]
    assert len(remembered) == MAX_TENANTS
    assert "least" not in remembered
    assert shares.excess("most", 1.0, 1.0) == LARGEST_EXCESS


def test_tenant_of_twice_the_weight_has_twice_the_share() -> None:
    shares = TenantShares()
    shares.charge("paying", 2.0, 2.0, 1.0)
    shares.charge("other", 1.0, 1.0, 1.0)
    assert shares.excess("paying", 2.0, 1.0) == pytest.approx(1.0)
    assert shares.excess("other", 1.0, 1.0) == pytest.approx(1.0)
    shares.charge("paying", 2.0, 1.0, 1.0)
    assert shares.excess("paying", 2.0, 1.0) > 1.0 > shares.excess("other", 1.0, 1.0)


def test_new_weight_holds_from_the_next_request_on() -> None:
    shares, changed = TenantShares(), TenantShares()
    shares.charge("other", 1.0, 1.0, 1.0)
    changed.charge("other", 1.0, 1.0, 1.0)
    shares.charge("paying", 3.0, 2.0, 1.0)
    changed.charge("paying", 1.0, 1.5, 1.0)
    changed.charge("paying", 3.0, 0.5, 1.0)
    for who, weight in (("paying", 3.0), ("other", 1.0), ("new", 7.0)):
        assert changed.excess(who, weight, 1.0) == pytest.approx(shares.excess(who, weight, 1.0))


@given(
    st.dictionaries(st.sampled_from("abc"), st.floats(0.01, 100.0)),
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.01, 10.0), st.floats(0.0, 100.0)), min_size=1, max_size=40),
)
def test_excess_follows_use_by_weight(weights: dict[str, float], charges: list[tuple[str, float, float]]) -> None:
    """The mean of the excess by weight is 1, whoever uses more for its weight has more of it, and only ratios count."""
    weights = dict.fromkeys("abc", 1.0) | weights
    shares, scaled, now = TenantShares(), TenantShares(), 0.0
    used: dict[str, float] = {}
    for tenant, engine_s, wait_s in charges:
        now += wait_s
        shares.charge(tenant, weights[tenant], engine_s, now)
        scaled.charge(tenant, 0.5 * weights[tenant], engine_s, now)
        excesses = {who: shares.excess(who, weights[who], now) for who in "abc"}
        assert {who: scaled.excess(who, 0.5 * weights[who], now) for who in "abc"} == pytest.approx(excesses)
        active = {who: weights[who] for who, excess in excesses.items() if excess > 0.0}
        if max(excesses.values()) < LARGEST_EXCESS:
            weighted = sum(weight * excesses[who] for who, weight in active.items())
            assert weighted / sum(active.values()) == pytest.approx(1.0)
        if not wait_s:
            used[tenant] = used.get(tenant, 0.0) + engine_s
        else:
            used = {tenant: engine_s}
        if len(used) > 1 and used.keys() == active.keys() and len(charges) == sum(not w for _, _, w in charges):
            per_weight = {who: used[who] / active[who] for who in used}
            assert max(per_weight, key=per_weight.__getitem__) in [
                who for who in used if excesses[who] == pytest.approx(max(excesses.values()))
            ]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.01, 10.0), st.floats(0.0, 100.0)), max_size=40))
def test_excess_is_bounded_and_its_mean_over_the_remembered_tenants_is_one(
    charges: list[tuple[str, float, float]],
) -> None:
    shares, now = TenantShares(), 0.0
    for tenant, engine_s, wait_s in charges:
        now += wait_s
        shares.charge(tenant, 1.0, engine_s, now)
        excesses = [shares.excess(who, 1.0, now) for who in "abc"]
        assert all(0.0 <= excess <= LARGEST_EXCESS for excess in excesses)
        assert mean(excess for excess in excesses if excess > 0.0) == pytest.approx(1.0)
        assert shares.seconds_per_s() >= 0.0
