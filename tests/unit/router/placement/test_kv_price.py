"""What KV memory costs while it is scarce."""

import msgspec
import pytest

from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement, Slo
from cluster.messages.reports import EngineShape
from router.load.charge import Charge, Work
from router.load.worker_state import WorkerState
from router.placement.kv_price import kv_price
from router.prediction.learned_latency import LatencyModel
from router.prediction.output_lengths import LengthHistogram
from router.prediction.path_bias import PathBias
from router.prediction.worker_model import WorkerModel
from tests.unit.clusters import a_report
from tests.unit.factories import a_placement_request

CAPACITY = 100_000
PLACEMENT = Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="", slo=Slo(1.0, 0.05))


def open_requests(number: int) -> dict[RequestId, Charge]:
    return {
        RequestId(f"r{n}"): Charge(
            a_placement_request(f"r{n}"), PLACEMENT, LengthHistogram(), Work(0.1, 0.1, 0.2), 10, 1.0, None, 0.0
        )
        for n in range(number)
    }


def workers(*reserved: int, each: int = 1000, capacity: int = CAPACITY) -> list[WorkerState]:
    """Workers with so many reserved KV tokens, in requests of `each`."""
    found = []
    for number, tokens in enumerate(reserved):
        report = a_report(f"d{number}")
        report = msgspec.structs.replace(report, shape=EngineShape(kv_capacity_tokens=capacity))
        worker = WorkerState(report, WorkerModel(LatencyModel(None)), PathBias(), 0.0)
        worker.kv_reserved = tokens
        worker.charges = open_requests(tokens // each)
        found.append(worker)
    return found


def test_free_memory_costs_nothing() -> None:
    assert 1000 * kv_price(workers(20_000, 30_000)) < 0.001


def test_in_full_memory_a_usual_request_displaces_one_and_a_long_one_several() -> None:
    full = workers(99_000, 100_000)
    assert 0.8 < 1000 * kv_price(full) < 1.0
    assert 10_000 * kv_price(full) > 8.0


def test_room_on_another_worker_makes_memory_cheap() -> None:
    assert 1000 * kv_price(workers(100_000, 0)) < 0.01


def test_many_tiny_requests_do_not_make_half_full_memory_dear() -> None:
    (worker,) = workers(60_000)
    worker.charges = open_requests(60 + 400)
    worker.kv_reserved += 400 * 2
    assert 1000 * kv_price([worker]) < 0.1


@pytest.mark.parametrize("reserved", [0, 50_000])
def test_workers_that_do_not_tell_their_memory_have_no_price(reserved: int) -> None:
    assert kv_price(workers(reserved, capacity=0)) == 0.0


def test_no_workers_have_no_price() -> None:
    assert kv_price([]) == 0.0
