"""Which requests a worker gets that an operator drains: those that no other worker of either pool can take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Path, Pool, WorkerId
from cluster.messages.placement import Placement, Rejection
from cluster.messages.scheduler_events import WorkerLeft
from router.state import RouterState
from tests.unit.clusters import a_cluster, a_report, ask, ended, put, report_all

ALL = [WorkerId(name) for name in ("p0", "p1", "d0", "d1")]
PROMPTS = st.integers(1, 30_000)


def used(placement: Placement) -> set[WorkerId]:
    return {worker for worker in (placement.prefill, placement.decode) if worker is not None}


def a_drained_cluster(*draining: str) -> RouterState:
    state = a_cluster(2, 2)
    state.workers.drain([WorkerId(worker) for worker in draining])
    return state


@given(st.sets(st.sampled_from(ALL)), st.lists(st.tuples(PROMPTS, st.sets(st.sampled_from(ALL))), max_size=12))
def test_nothing_is_placed_on_a_draining_worker_while_another_can_take_it(
    draining: set[WorkerId], requests: list[tuple[int, set[WorkerId]]]
) -> None:
    """Also where the request has failed on workers, which it then does not use."""
    state = a_drained_cluster(*draining)
    for number, (num_prompt, excluded) in enumerate(requests):
        now = 0.01 * number
        answer = state.place(ask(f"r{number}", num_prompt, excluded=frozenset(excluded)), now)
        state.validate()
        if isinstance(answer, Placement):
            others = {*ALL} - draining - excluded
            assert not used(answer) & draining or not others
            assert not used(answer) & excluded


@pytest.mark.parametrize("draining", [("p0", "p1"), ("d0", "d1")])
def test_other_pool_does_all_the_work_of_a_pool_that_drains(draining: tuple[str, str]) -> None:
    state = a_drained_cluster(*draining)
    for number in range(8):
        assert not used(put(state, ask(f"r{number}", 2000), 0.01 * number)) & {*draining}


def test_requests_are_served_where_all_workers_drain() -> None:
    state = a_drained_cluster(*ALL)
    assert used(put(state, ask("r", 100), 0.0))


def test_request_that_asks_for_the_path_of_a_draining_worker_gets_it() -> None:
    """The operator's debugging header names what only this worker can do."""
    state = a_drained_cluster("p0", "p1")
    assert put(state, ask("r", 2000, path=Path.PREFILL_DECODE), 0.0).prefill in {"p0", "p1"}


def test_draining_worker_takes_what_full_workers_cannot() -> None:
    state = a_cluster(0, 1)
    state.handle(a_report("d1"), 0.0)
    state.workers.drain([WorkerId("d1")])
    busy = a_report("d0", num_running=2000)
    state.handle(busy, 0.1)
    assert put(state, ask("r", 100), 0.2).decode == "d1"


def test_worker_that_is_full_and_drains_is_an_overload() -> None:
    state = a_cluster(0, 1)
    state.workers.drain([WorkerId("d0")])
    state.handle(a_report("d0", num_running=2000), 0.1)
    answer = state.place(ask("r", 100), 0.2)
    assert isinstance(answer, Rejection)
    assert answer.is_overload


def test_running_requests_stay_and_the_drain_can_be_undone() -> None:
    state = a_cluster(0, 1)
    put(state, ask("r", 100), 0.0)
    state.handle(a_report("d1"), 0.0)
    state.workers.drain([WorkerId("d0")])
    assert [state.workers.by_id[WorkerId(worker)].num_placed for worker in ("d0", "d1")] == [1, 0]
    for number in range(4):
        assert put(state, ask(f"s{number}", 100), 0.1).decode == "d1"
    ended(state, "r", 0.2, num_output_tokens=3)
    assert state.workers.by_id[WorkerId("d0")].num_placed == 0
    state.workers.drain([])
    assert put(state, ask("t", 100), 0.3).decode == "d0"


def test_drain_outlasts_a_pause_of_the_worker() -> None:
    """A worker that was silent for a while, or that the Scheduler took for gone, is the same worker."""
    state = a_drained_cluster("d0")
    state.handle(WorkerLeft(worker=WorkerId("d0")), 0.1)
    state.handle(a_report("d0", {"p0": None}), 0.2)
    report_all(state, 0.2)
    state.validate()
    assert put(state, ask("r", 100, path=Path.DECODE), 0.3).decode == "d1"


def test_ingresses_learn_of_drains_for_the_time_without_a_scheduler() -> None:
    state = a_cluster(1, 1)
    version = state.roster(0, 0.0).version
    state.workers.drain([WorkerId("d0")])
    (changed,) = state.roster(version, 0.0).joined
    assert (changed.worker, changed.pool, changed.is_draining) == ("d0", Pool.DECODE, True)
    state.workers.drain([])
    assert not any(entry.is_draining for entry in state.roster(0, 0.0).joined)
