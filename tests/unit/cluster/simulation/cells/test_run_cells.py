"""Runs with several cells on one virtual clock."""

import msgspec
import pytest

from cluster.messages.ids import Outcome, Pool
from cluster.simulation.cells.run_cells import CellsRun, simulate_cells
from cluster.simulation.pools.pool_setting import Fault
from cluster.simulation.run import simulate
from cluster.simulation.traffic.workload import SimRequest
from router.pending_placements import PendingPlacements
from router.state import RouterState
from tests.unit.cluster.simulation.test_run import a_request, a_setting, a_workload


def a_scheduler() -> PendingPlacements:
    return PendingPlacements(RouterState())


def ran(workload: list[SimRequest], num_cells: int, num_fronts: int = 1, **changes: object) -> CellsRun:
    setting = msgspec.structs.replace(a_setting(1, 1), **changes)
    return simulate_cells(workload, setting, num_cells, a_scheduler, num_fronts)


def test_one_cell_serves_as_its_scheduler_does_without_a_front() -> None:
    workload = a_workload(200, 8.0)
    records = [
        msgspec.structs.replace(record, worker=record.worker.removeprefix("c0/")) for record in ran(workload, 1).records
    ]
    assert records == simulate(workload, a_setting(1, 1), a_scheduler)


@pytest.mark.parametrize(("num_cells", "num_fronts"), [(2, 1), (4, 4)])
def test_cells_serve_every_request_and_the_same_run_is_the_same(num_cells: int, num_fronts: int) -> None:
    workload = a_workload(300, 2.0 * num_cells)
    run = ran(workload, num_cells, num_fronts)
    assert {record.outcome for record in run.records} == {Outcome.FINISHED}
    assert run == ran(workload, num_cells, num_fronts)
    assert all(len(loads) == num_cells for loads in run.loads)
    assert min(max(each) for each in zip(*run.loads, strict=True)) > 0.0


def test_turns_of_a_conversation_find_their_prefix() -> None:
    workload = [
        a_request(
            10.0 * turn + chat, 500 * (turn + 1), 10, block_hashes=[b"%d/%d" % (chat, i) for i in range(turn + 1)]
        )
        for turn in range(5)
        for chat in range(8)
    ]
    run = ran(workload, 4, 4)
    assert all(record.num_hit_tokens for record in run.records[8:])


def test_request_whose_worker_dies_goes_on_in_its_cell_or_in_another_one() -> None:
    faults = (Fault(pool=Pool.DECODE, index=0, at_s=5.0, back_after_s=1.0),)
    run = ran(a_workload(100, 6.0), 2, faults=faults)
    assert {record.outcome for record in run.records} == {Outcome.FINISHED}
    assert max(record.num_attempts for record in run.records) > 1
