from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.quality.schedule import ProbeTarget, Schedule, targets_of
from cluster.messages.ids import Path, WorkerId
from tests.unit.api.quality.answers import a_cluster

D0, P0 = ProbeTarget(WorkerId("d0"), Path.DECODE), ProbeTarget(WorkerId("p0"), Path.PREFILL)


def test_each_worker_is_a_target_on_each_of_its_paths() -> None:
    assert {(t.worker, t.path) for t in targets_of(a_cluster(1, 1).workers)} == {
        ("p0", Path.PREFILL),
        ("p0", Path.PREFILL_DECODE),
        ("d0", Path.DECODE),
        ("d0", Path.PREFILL_DECODE),
    }


def test_worker_without_a_link_is_no_target_on_the_path_of_pairs() -> None:
    alone = [w for w in a_cluster(1, 1).workers if w.worker == "p0"]
    assert [t.path for t in targets_of(alone)] == [Path.PREFILL]


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.floats(0.05, 3.0),
    st.sampled_from([0.01, 0.05, 0.3, 1.0]),
    st.integers(0, 2**16),
)
def test_probes_never_take_more_than_their_share_and_reach_all_targets(
    num_prefill: int, num_decode: int, visit_s: float, max_share: float, seed: int
) -> None:
    every_s, rng = 100.0, Random(seed)
    schedule = Schedule(every_s, max_share, rng.random)
    targets = targets_of(a_cluster(num_prefill, num_decode).workers)
    schedule.keep(targets, 0.0)
    now, spent, visited = 0.0, dict.fromkeys((t.worker for t in targets), 0.0), dict.fromkeys(targets, 0.0)
    longest_gap = dict.fromkeys(targets, 0.0)
    while now < 20 * every_s:
        target = schedule.next(now, ())
        if target is None:
            now += 0.5
            continue
        took = visit_s * rng.uniform(0.5, 1.0)
        schedule.visited(target, [target.worker], now, now + took)
        longest_gap[target] = max(longest_gap[target], now - visited[target])
        visited[target] = now
        spent[target.worker] += took
        now += took
        assert spent[target.worker] <= max_share * now + visit_s
    feasible = len(targets) * visit_s < every_s / 4 and 2 * visit_s < max_share * every_s / 4
    if feasible:
        assert all(gap <= every_s * 1.1 for gap in longest_gap.values())
        assert all(at > 18 * every_s for at in visited.values())


def test_both_workers_of_a_pair_rest_after_a_probe() -> None:
    schedule = Schedule(10.0, 0.1, Random(0).random)
    schedule.keep(targets_of(a_cluster(1, 1).workers), 0.0)
    schedule.hurry(0.0)
    pair = ProbeTarget(WorkerId("d0"), Path.PREFILL_DECODE)
    schedule.visited(pair, [WorkerId("p0"), WorkerId("d0")], 0.0, 1.0)
    assert not schedule.may_be_beside(WorkerId("p0"), pair, 9.9)
    assert schedule.may_be_beside(WorkerId("p0"), pair, 10.0)


def test_operator_is_not_kept_waiting_by_the_share() -> None:
    schedule = Schedule(100.0, 0.001, Random(0).random)
    schedule.keep([D0], 0.0)
    schedule.hurry(0.0)
    schedule.visited(D0, [D0.worker], 0.0, 5.0)
    assert schedule.next(500.0, ()) is None
    schedule.hurry(500.0)
    assert schedule.next(500.0, ()) == D0
    assert schedule.next(500.0, {D0.worker}) is None, "it is being probed"


@pytest.mark.parametrize("is_soon", [True, False])
def test_target_that_differed_comes_again_soon(is_soon: bool) -> None:
    schedule = Schedule(100.0, 1.0, Random(0).random)
    schedule.keep([P0], 0.0)
    schedule.hurry(0.0)
    schedule.visited(P0, [P0.worker], 0.0, 1.0, is_soon=is_soon)
    assert (schedule.next(12.0, ()) == P0) is is_soon
    assert schedule.next(101.0, ()) == P0


def test_target_that_is_gone_is_not_probed() -> None:
    schedule = Schedule(1.0, 1.0, Random(0).random)
    schedule.keep([D0, P0], 0.0)
    schedule.keep([P0], 0.0)
    assert [schedule.next(5.0, ()), schedule.next(5.0, [P0.worker])] == [P0, None]
