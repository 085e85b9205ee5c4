"""What KV memory costs while it is scarce."""

import msgspec

from cluster.messages.reports import EngineShape
from router.load.worker_state import WorkerState
from router.placement.kv_price import KvPrice
from router.prediction.learned_latency import LatencyModel
from router.prediction.path_bias import PathBias
from tests.unit.clusters import a_report

CAPACITY = 100_000


def workers(*reserved: int, capacity: int = CAPACITY) -> list[WorkerState]:
    found = []
    for number, tokens in enumerate(reserved):
        report = a_report(f"d{number}")
        report = msgspec.structs.replace(report, shape=EngineShape(kv_capacity_tokens=capacity))
        worker = WorkerState(report, LatencyModel(None), PathBias(), 0.0)
        worker.kv_reserved = tokens
        found.append(worker)
    return found


def a_price(usual_tokens: int = 1000) -> KvPrice:
    price = KvPrice()
    for _ in range(100):
        price.note(usual_tokens)
    return price


def test_free_memory_costs_nothing() -> None:
    assert 1000 * a_price().per_token(workers(20_000, 30_000)) < 0.001


def test_in_full_memory_a_usual_request_displaces_one_and_a_long_one_several() -> None:
    full = workers(99_000, 100_000)
    assert 0.8 < 1000 * a_price().per_token(full) < 1.0
    assert 10_000 * a_price().per_token(full) > 8.0


def test_room_on_another_worker_makes_memory_cheap() -> None:
    assert 1000 * a_price().per_token(workers(100_000, 0)) < 0.01


def test_price_follows_the_usual_request_slowly() -> None:
    price = a_price(1000)
    price.note(100_000)
    assert 0.7 < 1000 * price.per_token(workers(100_000)) < 1.0


def test_workers_that_do_not_tell_their_memory_have_no_price() -> None:
    assert a_price().per_token(workers(50_000, capacity=0)) == 0.0
    assert a_price().per_token([]) == 0.0
