"""Reserve, settle, renew and expiry over several limits, on a clock of the test."""

import pytest

from api.limits.budget import BUSY_MS, KEPT_MS, SWEPT_AT_ONCE, BudgetModel, Denied, Entry, Granted, Unseeded
from api.limits.counters import DAY_MS, MINUTE_MS
from api.limits.limits import Amounts, LimitKind
from cluster.config.tenants.limits import Limits
from tests.expected import of_kind
from tests.unit.api.limits.a_request import entry

LIFETIME_MS = 60_000


@pytest.fixture
def model() -> BudgetModel:
    return BudgetModel()


def granted(model: BudgetModel, asked: Entry, now_ms: int = 0) -> Granted:
    return of_kind(Granted, model.reserve(asked, LIFETIME_MS, now_ms))


def denied(model: BudgetModel, asked: Entry, now_ms: int = 0) -> Denied:
    return of_kind(Denied, model.reserve(asked, LIFETIME_MS, now_ms))


def remaining(model: BudgetModel, now_ms: int = 0, /, **limits: Limits) -> list[int]:
    """What each bucket has left."""
    probe = entry(0, 0, **limits)
    answer = model.reserve(probe._replace(reserved=Amounts(0)), LIFETIME_MS, now_ms)
    assert not isinstance(answer, Unseeded)
    left = [room.remaining for room in answer.rooms]
    model.settle(probe, Amounts(0), now_ms, now_ms)
    return left


def test_request_that_one_limit_refuses_takes_nothing_from_the_others(model: BudgetModel) -> None:
    limits = {"key": Limits(requests_per_minute=10, tokens_per_minute=100), "tenant": Limits(tokens_per_day=50)}
    assert denied(model, entry(60, **limits)).binding == 2
    assert remaining(model, **limits) == [10, 100, 50]
    assert [room.remaining for room in granted(model, entry(50, **limits)).rooms] == [9, 50, 0]


def test_binding_limit_is_one_that_never_fits_then_a_budget_then_the_longest_wait(model: BudgetModel) -> None:
    limits = {
        "key": Limits(requests_per_minute=1, tokens_per_minute=100, concurrent_requests=1),
        "tenant": Limits(tokens_per_minute=10_000, cost_per_day=5),
    }
    spent = entry(0, 5, tenant=limits["tenant"])
    granted(model, spent)
    model.settle(spent, spent.reserved, 0, 0)
    granted(model, entry(100, 0, **limits))
    larger, over_budget = denied(model, entry(101, 1, **limits)), denied(model, entry(60, 1, **limits))
    assert [(found.binding, found.wait_ms) for found in (larger, over_budget)] == [(1, 0), (4, DAY_MS)]
    waiting = denied(model, entry(60, 0, **limits))
    assert (waiting.binding, waiting.wait_ms) == (0, MINUTE_MS)
    busy = denied(model, entry(0, 0, **limits), LIFETIME_MS - 1)
    assert (busy.binding, busy.wait_ms) == (2, BUSY_MS)


def test_busy_scope_takes_a_request_when_one_has_ended(model: BudgetModel) -> None:
    limits = {"tenant": Limits(concurrent_requests=2)}
    first, second = entry(**limits), entry(**limits)
    granted(model, first)
    granted(model, second)
    assert denied(model, entry(**limits)).wait_ms == BUSY_MS
    model.settle(first, Amounts(), 0, 0)
    granted(model, entry(**limits))
    denied(model, entry(**limits))


def test_settled_request_counts_what_it_has_used_and_a_refund_nothing(model: BudgetModel) -> None:
    limits = {"key": Limits(requests_per_minute=10, tokens_per_minute=100, tokens_per_month=1000)}
    used, failed = entry(50, **limits), entry(50, **limits)
    granted(model, used)
    granted(model, failed)
    assert model.settle(used, Amounts(1, 20), 0, 0)
    assert model.settle(failed, Amounts(0), 0, 0)
    assert remaining(model, **limits) == [9, 80, 980]


def test_use_beyond_the_reservation_is_counted(model: BudgetModel) -> None:
    limits = {"key": Limits(tokens_per_minute=100, tokens_per_day=1000)}
    asked = entry(50, **limits)
    granted(model, asked)
    model.settle(asked, Amounts(1, 150), 0, 0)
    assert remaining(model, **limits) == [0, 850]
    assert denied(model, entry(1, **limits)).wait_ms == 51 * MINUTE_MS // 100


def test_second_settlement_changes_nothing(model: BudgetModel) -> None:
    limits = {"key": Limits(tokens_per_day=1000)}
    asked = entry(50, **limits)
    granted(model, asked)
    assert [model.settle(asked, Amounts(1, 10), 5, now_ms) for now_ms in (5, 6, KEPT_MS * 3)] == [True, False, False]
    assert remaining(model, **limits) == [990]


def test_lost_request_gives_everything_back_when_it_expires(model: BudgetModel) -> None:
    limits = {"key": Limits(tokens_per_minute=100, concurrent_requests=1, tokens_per_day=1000)}
    granted(model, entry(100, **limits))
    denied(model, entry(0, **limits), LIFETIME_MS - 1)
    assert [room.remaining for room in granted(model, entry(0, **limits), LIFETIME_MS).rooms] == [100, 0, 1000]


def test_renewed_request_does_not_expire(model: BudgetModel) -> None:
    limits = {"key": Limits(concurrent_requests=1)}
    asked = entry(**limits)
    granted(model, asked)
    model.renew(asked, LIFETIME_MS, LIFETIME_MS - 1)
    denied(model, entry(**limits), 2 * LIFETIME_MS - 2)
    granted(model, entry(**limits), 2 * LIFETIME_MS - 1)


def test_late_settlement_of_an_expired_request_counts_what_it_has_used(model: BudgetModel) -> None:
    limits = {"key": Limits(tokens_per_minute=100, tokens_per_day=1000)}
    asked = entry(60, **limits)
    granted(model, asked)
    now_ms = 2 * LIFETIME_MS
    assert remaining(model, now_ms, **limits) == [100, 1000]
    assert model.settle(asked, Amounts(1, 40), now_ms, now_ms)
    assert not model.settle(asked, Amounts(1, 40), now_ms, now_ms)
    assert remaining(model, now_ms, **limits) == [60, 960]


def test_renewal_of_an_expired_request_counts_it_again(model: BudgetModel) -> None:
    limits = {"key": Limits(concurrent_requests=1, tokens_per_day=1000)}
    asked = entry(60, **limits)
    granted(model, asked)
    now_ms = 2 * LIFETIME_MS
    assert remaining(model, now_ms, **limits) == [0, 1000]  # the probe is open itself
    model.renew(asked, LIFETIME_MS, now_ms)
    denied(model, entry(**limits), now_ms)
    model.settle(asked, Amounts(1, 40), now_ms, now_ms)
    assert remaining(model, now_ms, **limits) == [0, 960]


def test_renewal_after_the_end_opens_nothing(model: BudgetModel) -> None:
    limits = {"key": Limits(concurrent_requests=1)}
    asked = entry(**limits)
    granted(model, asked)
    model.settle(asked, Amounts(), 0, 0)
    model.renew(asked, LIFETIME_MS, 0)
    granted(model, entry(**limits))


def test_use_belongs_to_the_day_on_which_it_was_reserved(model: BudgetModel) -> None:
    limits = {"key": Limits(tokens_per_day=100, tokens_per_month=1000)}
    asked = entry(60, **limits)._replace(taken_at_ms=DAY_MS - 1)
    granted(model, asked, DAY_MS - 1)
    model.settle(asked, Amounts(1, 50), DAY_MS + 1, DAY_MS + 1)
    assert remaining(model, DAY_MS + 1, **limits) == [100, 950]


def test_settlement_that_comes_too_late_to_be_told_from_a_second_one_does_not_count(model: BudgetModel) -> None:
    limits = {"key": Limits(tokens_per_day=100)}
    assert not model.settle(entry(60, **limits), Amounts(1, 50), 10, KEPT_MS + 11)
    assert model.settle(entry(60, **limits), Amounts(1, 50), 10, KEPT_MS + 10)
    assert remaining(model, KEPT_MS + 10, **limits) == [50]


def test_many_lost_requests_are_given_back_in_parts(model: BudgetModel) -> None:
    limits = {"key": Limits(tokens_per_day=10_000)}
    for _ in range(2 * SWEPT_AT_ONCE):
        granted(model, entry(10, **limits))
    left = [remaining(model, LIFETIME_MS, **limits)[0] for _ in range(2)]
    assert left == [10_000 - 10 * SWEPT_AT_ONCE, 10_000]


def test_budget_begins_with_what_the_ledger_knows(model: BudgetModel) -> None:
    limits = {"key": Limits(tokens_per_minute=1000, tokens_per_day=1000, cost_per_month=50)}
    asked = entry(100, 1, **limits)
    assert model.reserve(asked, LIFETIME_MS, 5, {}) == Unseeded(5, [1, 2])
    assert model.reserve(asked, LIFETIME_MS, 5, {1: 800}) == Unseeded(5, [2])
    answer = of_kind(Granted, model.reserve(asked, LIFETIME_MS, 5, {1: 0, 2: 49}))
    assert [room.remaining for room in answer.rooms] == [900, 100, 0]
    assert isinstance(model.reserve(entry(1, **limits), LIFETIME_MS, 40 * DAY_MS, {}), Granted)


def test_request_from_before_the_ledger_was_asked_is_counted_once(model: BudgetModel) -> None:
    """Redis has forgotten the request. The ledger knows it if it had ended, else its settlement counts."""
    limits = {"key": Limits(tokens_per_day=1000)}
    ended, runs = entry(60, **limits), entry(60, **limits)
    assert isinstance(model.reserve(entry(0, **limits), LIFETIME_MS, 100, {0: 500}), Granted)
    model.settle(ended, Amounts(1, 60), 99, 200)
    model.settle(runs, Amounts(1, 60), 150, 200)
    assert remaining(model, 200, **limits) == [440]


def test_changed_limit_holds_from_the_next_request_on(model: BudgetModel) -> None:
    granted(model, entry(100, key=Limits(tokens_per_minute=100)))
    assert denied(model, entry(1, key=Limits(tokens_per_minute=50))).rooms[0].reset_ms == 2 * MINUTE_MS
    assert [room.remaining for room in granted(model, entry(1, key=Limits(tokens_per_minute=200))).rooms] == [99]


def test_budget_of_zero_refuses_even_what_takes_nothing(model: BudgetModel) -> None:
    assert denied(model, entry(0, tenant=Limits(cost_per_month=0))).binding == 0


def test_budget_that_open_requests_have_reserved_is_not_spent(model: BudgetModel) -> None:
    """Of a budget of a million tokens, eight requests that may take 131,072 each."""
    limits = {"key": Limits(tokens_per_day=1_000_000)}
    opened = [entry(131_072, **limits) for _ in range(7)]
    for one in opened:
        granted(model, one)
    assert denied(model, entry(131_072, **limits)).wait_ms == BUSY_MS
    for one in opened[:6]:
        model.settle(one, Amounts(1, 100_000), 1, 1)
    granted(model, entry(131_072, **limits), 1)
    assert denied(model, entry(262_144, **limits), 1).wait_ms == BUSY_MS
    model.settle(opened[6], Amounts(1, 300_000), 2, 2)
    assert denied(model, entry(131_072, **limits), 2).wait_ms == DAY_MS - 2


def test_what_was_reserved_and_lost_is_reserved_no_more(model: BudgetModel) -> None:
    limits = {"key": Limits(tokens_per_day=100)}
    granted(model, entry(90, **limits))
    assert denied(model, entry(50, **limits), 1).wait_ms == BUSY_MS
    used = entry(90, **limits)
    granted(model, used, LIFETIME_MS)
    model.settle(used, Amounts(1, 90), LIFETIME_MS, LIFETIME_MS)
    assert denied(model, entry(50, **limits), LIFETIME_MS).wait_ms == DAY_MS - LIFETIME_MS


def test_budget_kinds() -> None:
    assert [kind.value for kind in LimitKind if kind.is_budget] == ["td", "tm", "cd", "cm"]
