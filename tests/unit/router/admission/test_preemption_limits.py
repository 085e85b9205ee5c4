"""What bounds the pauses: their time, the choice of who pauses, and who may have others pause."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import Path, RequestId, SloClass
from cluster.messages.scheduler_events import FirstToken
from router.admission.preemption import BURST_S, LEAST_RUN_S, LOOK_AGAIN_S, MAX_PAUSES, TIME_SHARE
from router.state import RouterState
from tests.unit.clusters import KIND, ask, ended, put
from tests.unit.router.admission.full_workers import (
    BATCH,
    BEGAN,
    INTERACTIVE,
    LONG,
    NOW,
    NUM_LONG,
    WORKERS,
    a_full_worker,
    asks,
    comes_back,
    decode_long,
    report,
)

MOST_SHARE = 0.1
"""Share of the engines' time that clients of lower classes may be asked to give up for pauses in a long rush."""


def computed_s(state: RouterState) -> float:
    """Engine time that the computation after a pause takes, at least."""
    return state.models.model(KIND).times.prefill_s(LONG, 0, 1024)


def a_worker_of_two_kinds(first: dict[str, float], second: dict[str, float]) -> RouterState:
    """Half of its long requests have the fields `first`, and came before the others."""
    state = a_full_worker(number=0)
    names = [f"{kind}{number}" for kind in ("first", "second") for number in range(NUM_LONG // 2)]
    for name in names:
        fields = first if name.startswith("first") else second
        put(state, ask(name, LONG, slo_class=BATCH, can_pause=True, path=Path.DECODE, **fields), 0.0)
    for name in names:
        state.handle(FirstToken(request_id=RequestId(name)), BEGAN)
    report(state, WORKERS, NOW)
    return state


@settings(max_examples=60, deadline=None)
@given(
    num_workers=st.integers(1, 2),
    arrivals=st.lists(
        st.tuples(st.sampled_from([1.5, 5.0, 0.1, 0.0]), st.sampled_from(list(SloClass)), st.booleans(), st.booleans()),
        max_size=40,
    ),
)
def test_pauses_are_bounded_in_any_rush(num_workers: int, arrivals: list[tuple[float, SloClass, bool, bool]]) -> None:
    """No request pauses more than MAX_PAUSES times, none for its equals, and their computations take a bounded time."""
    state, now, workers = a_full_worker(num_workers=num_workers), NOW, ["d0", "d1"][:num_workers]
    num_pauses = Counter[RequestId]()
    for number, (gap_s, slo_class, is_answered, stays) in enumerate(arrivals):
        now += gap_s
        report(state, workers, now)
        _, pauses = asks(state, now, slo_class, f"r{number}")
        assert not pauses or slo_class is not BATCH
        num_pauses.update(pause.request_id for pause in pauses)
        if is_answered:
            for pause in pauses:
                comes_back(state, pause, now, num_pauses=num_pauses[pause.request_id])
        if not stays:
            ended(state, f"r{number}", now, num_output_tokens=100)
        state.decide(now)
        num_pauses.update(pause.request_id for _, pause, _ in state.take_pauses())
        most_s = num_workers * (BURST_S + TIME_SHARE * (now - NOW))
        assert num_pauses.total() * computed_s(state) <= most_s
    assert all(number <= MAX_PAUSES for number in num_pauses.values())


def test_long_rush_takes_a_small_share_of_the_engines_time() -> None:
    """The requests that are asked to pause run on, so that each further request needs another pause."""
    state, now, paused_s = a_full_worker(), NOW, 0.0
    for number in range(30):
        now += 1.5
        report(state, WORKERS, now)
        _, pauses = asks(state, now, name=f"r{number}")
        paused_s += len(pauses) * computed_s(state)
        ended(state, f"r{number}", now + 0.5, num_output_tokens=100)
        assert paused_s <= BURST_S + MOST_SHARE * (now - NOW)
    assert paused_s > BURST_S, "the rush would have had more requests pause"


def test_room_that_is_being_left_is_not_asked_for_twice() -> None:
    state = a_full_worker()
    _, first = asks(state, name="r1", num_prompt=6000)
    _, second = asks(state, name="r2", num_prompt=6000)
    assert (len(first), second) == (1, [])


def test_request_that_loses_least_pauses() -> None:
    _, (pause,) = asks(a_worker_of_two_kinds({"tpot_s": 0.09}, {"tpot_s": 1.0}))
    assert pause.request_id.startswith("second")


def test_request_that_has_paused_before_loses_more() -> None:
    _, (pause,) = asks(a_worker_of_two_kinds({"tpot_s": 0.12, "num_pauses": 1}, {"tpot_s": 0.12}))
    assert pause.request_id.startswith("second")


def test_request_that_would_lose_its_objective_with_another_pause_runs_on() -> None:
    assert len(asks(a_full_worker(tpot_s=0.1))[1]) == 1
    assert asks(a_full_worker(tpot_s=0.1, num_pauses=1))[1] == []


@pytest.mark.parametrize(("after_s", "num_pauses"), [(0.9 * LOOK_AGAIN_S, 0), (1.1 * LOOK_AGAIN_S, 1)])
def test_no_request_of_a_class_looks_for_pauses_soon_after_one_has_found_none(after_s: float, num_pauses: int) -> None:
    """The long requests have run for long enough a moment after the first one has looked."""
    state, names = a_full_worker(number=0), [f"new{number}" for number in range(NUM_LONG)]
    decode_long(state, "d0", NOW - BEGAN, NOW - LEAST_RUN_S + LOOK_AGAIN_S / 2, names)
    report(state, WORKERS, NOW)
    assert asks(state, name="r1")[1] == []
    ended(state, "r1", NOW)
    assert len(asks(state, NOW + after_s, name="r2")[1]) == num_pauses


def test_nobody_pauses_for_a_tenant_beyond_its_share_while_requests_wait() -> None:
    for tenant, num_pauses in (("heavy", 0), ("light", 1)):
        state = a_full_worker(tenant="heavy")
        put(state, ask("small", 100, tenant="light", slo_class=INTERACTIVE), NOW)
        assert state.place(ask("waits", 12_000, slo_class=BATCH, age_s=50.0, tenant="light"), NOW) is None
        assert len(asks(state, tenant=tenant)[1]) == num_pauses


def test_nobody_pauses_for_a_request_that_goes_on_elsewhere() -> None:
    assert len(asks(a_full_worker())[1]) == 1
    assert asks(a_full_worker(), num_output_tokens=100, attempt=2)[1] == []
