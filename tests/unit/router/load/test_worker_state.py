"""What a worker is charged with, from the placement of a request to its end."""

import pytest

from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement, Slo
from router.load.charge import Charge, Work
from router.load.worker_state import WorkerState
from router.prediction.learned_latency import LatencyModels
from router.prediction.output_lengths import LengthHistogram
from router.prediction.path_bias import PathBias
from router.prediction.worker_model import WorkerModel
from tests.unit.clusters import KIND, a_report
from tests.unit.factories import a_placement_request

PAIR = Placement(path=Path.PREFILL_DECODE, prefill=WorkerId("p0"), decode=WorkerId("d0"), why="", slo=Slo(1.0, 0.05))


def a_worker(name: str) -> WorkerState:
    return WorkerState(a_report(name), WorkerModel(LatencyModels().model(KIND)), PathBias(), 0.0)


def a_charge(request_id: str = "r", prefill_s: float = 0.5) -> Charge:
    request = a_placement_request(request_id, num_prompt_tokens=100)
    return Charge(request, PAIR, LengthHistogram(), Work(prefill_s, prefill_s, 2 * prefill_s), 150, 1.0, None, 0.0)


def test_prompts_are_computed_one_after_another() -> None:
    worker = a_worker("p0")
    for number in range(3):
        worker.queue_prefill(a_charge(f"r{number}"), 0.0, 0.0)
    assert worker.prompts.seconds(0.0) == pytest.approx(1.5)
    worker.prefilled(RequestId("r0"), 0.5)
    assert worker.prompts.seconds(0.5) == pytest.approx(1.0)


def test_queue_that_should_be_empty_is_late_for_as_long_again() -> None:
    worker = a_worker("p0")
    worker.queue_prefill(a_charge(), 0.0, 0.0)
    assert worker.prompts.seconds(0.75) == pytest.approx(0.25)


def test_link_is_busy_until_the_last_handoff_and_free_when_none_is_left() -> None:
    worker, charge = a_worker("p0"), a_charge()
    worker.queue_prefill(charge, 0.0, 0.0)
    worker.expect_outbound(charge)
    worker.queue_transfer(charge.joins_at)
    assert worker.link_free_at == 1.0
    worker.release(charge, 0.25)
    assert worker.link_free_at == 0.25
    worker.validate()


def test_decode_worker_reserves_memory_from_the_placement_to_the_end() -> None:
    worker, charge = a_worker("d0"), a_charge()
    worker.expect(charge)
    assert (worker.kv_reserved, worker.inbound_prompt, worker.running.num) == (150, 100, 0)
    worker.join(charge, 1.0)
    assert (worker.kv_reserved, worker.inbound_prompt, worker.running.num) == (150, 0, 1)
    worker.release(charge, 2.0)
    assert (worker.kv_reserved, worker.running.num, worker.charges) == (0, 0, {})
    worker.validate()


def test_report_of_more_requests_than_are_charged_takes_room() -> None:
    worker = a_worker("d0")
    assert worker.reported(a_report("d0", num_running=5), 0.25)
    assert (worker.room, worker.running.num_unknown) == (1995, 5)
    assert not worker.reported(a_report("d0", num_running=2), 0.5)


def test_worker_is_lost_until_it_reports() -> None:
    worker = a_worker("d0")
    worker.is_lost = True
    assert worker.is_lost
    worker.reported(a_report("d0"), 1.0)
    assert not worker.is_lost


def test_prefill_worker_that_comes_back_reserves_what_it_is_to_hand_over() -> None:
    worker, charge = a_worker("p0"), a_charge()
    worker.resume(charge, 0.5)
    assert (worker.kv_reserved, set(worker.outbound)) == (100, {charge.request_id})
    worker.validate()
    worker.release(charge, 1.0)
    assert worker.kv_reserved == 0
