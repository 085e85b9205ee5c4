"""Workers that an ingress could not reach: how long, and when several agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import IngressId, WorkerId
from router.trust import suspected_workers
from router.trust.suspected_workers import AGREE_S, LEAST_HOLD_S, MAX_PAIRS, MOST_HOLD_S, REPEAT_S, SuspectedWorkers

D0, D1 = WorkerId("d0"), WorkerId("d1")
ONE, OTHER = IngressId("one"), IngressId("other")


def test_repeated_failures_hold_longer_up_to_a_bound() -> None:
    suspects, now, holds = SuspectedWorkers(), 0.0, list[float]()
    for _ in range(10):
        suspects.suspect(ONE, D0, now)
        began = now
        while suspects.of(ONE, now):
            now += 0.5
        holds.append(now - began)
    assert holds[:4] == [1.0, 2.0, 4.0, 8.0]
    assert holds[-1] == MOST_HOLD_S


def test_failures_of_requests_that_were_on_their_way_count_as_one() -> None:
    suspects = SuspectedWorkers()
    for number in range(100):
        suspects.suspect(ONE, D0, number / 200)
    assert suspects.of(ONE, LEAST_HOLD_S - 0.01) == {D0}
    assert not suspects.of(ONE, LEAST_HOLD_S)


def test_each_hold_is_told_once_as_it_begins() -> None:
    suspects, told = SuspectedWorkers(), list[tuple[str, str, float]]()
    for now in (0.0, 0.5, 1.2, 1.3):  # the second and the last one come during a hold
        suspects.suspect(ONE, D0, now)
        told += [(held.ingress, held.worker, held.seconds) for held in suspects.take_new()]
    assert told == [(ONE, D0, LEAST_HOLD_S), (ONE, D0, 2 * LEAST_HOLD_S)]


def test_holds_that_nobody_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspected_workers, "MAX_NEW", 3)
    suspects = SuspectedWorkers()
    for number in range(10):
        suspects.suspect(ONE, WorkerId(f"d{number}"), 0.0)
    assert [held.worker for held in suspects.take_new()] == ["d0", "d1", "d2"]
    assert suspects.take_new() == []


def test_pair_is_shown_as_held_until_its_hold_ends() -> None:
    suspects = SuspectedWorkers()
    suspects.suspect(ONE, D0, 0.0)
    suspects.suspect(OTHER, D1, 0.5)
    assert [(held.ingress, held.worker) for held in suspects.held(0.9)] == [(ONE, D0), (OTHER, D1)]
    assert [(held.ingress, held.worker) for held in suspects.held(LEAST_HOLD_S)] == [(OTHER, D1)]
    assert suspects.held(0.5 + LEAST_HOLD_S) == []


def test_failure_long_after_another_begins_anew() -> None:
    suspects = SuspectedWorkers()
    suspects.suspect(ONE, D0, 0.0)
    later = LEAST_HOLD_S + REPEAT_S + 1.0
    suspects.suspect(ONE, D0, later)
    assert not suspects.of(ONE, later + LEAST_HOLD_S)


@pytest.mark.parametrize(("gap_s", "agree"), [(0.0, True), (AGREE_S, True), (AGREE_S + 0.1, False)])
def test_ingresses_agree_only_within_a_short_time(gap_s: float, agree: bool) -> None:
    suspects = SuspectedWorkers()
    assert not suspects.suspect(ONE, D0, 0.0)
    assert not suspects.suspect(OTHER, D1, 0.0)
    assert suspects.suspect(OTHER, D0, gap_s) == agree


def test_worker_that_is_gone_is_forgotten() -> None:
    suspects = SuspectedWorkers()
    suspects.suspect(ONE, D0, 0.0)
    suspects.forget(D0)
    suspects.validate()
    assert not suspects.of(ONE, 0.1)


def test_oldest_of_too_many_failures_is_forgotten() -> None:
    suspects, failed = SuspectedWorkers(), [WorkerId(f"d{number}") for number in range(MAX_PAIRS + 1)]
    for worker in failed:
        suspects.suspect(ONE, worker, 0.0)
    assert suspects.of(ONE, 0.0) == frozenset(failed[1:])


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("wxyz"), st.floats(0.0, 5.0), st.booleans()), max_size=60
    )
)
def test_memory_is_bounded_and_no_ingress_is_held_for_the_failures_of_another(
    steps: list[tuple[str, str, float, bool]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suspected_workers, "MAX_PAIRS", 3)
        suspects, now, failed = SuspectedWorkers(), 0.0, set[tuple[str, str]]()
        for ingress, worker, gap_s, is_end in steps:
            now += gap_s
            if is_end:
                suspects.forget(WorkerId(worker))
            else:
                failed.add((ingress, worker))
                suspects.suspect(IngressId(ingress), WorkerId(worker), now)
                assert worker in suspects.of(IngressId(ingress), now)
            suspects.validate()
            for one in "abc":
                assert {(one, held) for held in suspects.of(IngressId(one), now)} <= failed
