"""LMetric counts the prompt tokens that a worker has yet to compute."""

from cluster.messages.ids import Path
from cluster.messages.placement import Placement, Slo
from router.load.charge import Charge, Work
from router.load.worker_state import WorkerState
from router.placement.lmetric import score
from router.placement.placement_input import Others, PlacementInput
from router.prediction.learned_latency import LatencyModel
from router.prediction.output_lengths import LengthHistogram
from router.prediction.path_bias import PathBias
from router.prediction.worker_model import WorkerModel
from tests.unit.clusters import a_report, ask

NEW = PlacementInput(
    ask("new", 1000), Slo(1.0, 0.05), {}, LengthHistogram(), 0.0, Others([], 2, 1.0, 1.0, [], 0.0, 0.0, 0.0), 0.0
)


def queueing(name: str, num_prompt: int, num_hit: int) -> WorkerState:
    worker = WorkerState(a_report(name), WorkerModel(LatencyModel(None)), PathBias(), 0.0)
    placement = Placement(
        path=Path.DECODE, prefill=None, decode=worker.worker, why="", slo=Slo(1.0, 0.05), num_hit_tokens=num_hit
    )
    request = ask(f"on {name}", num_prompt)
    charge = Charge(request, placement, LengthHistogram(), Work(0.1, 0.0, 0.1), num_prompt, 1.0, None, 0.0)
    worker.queue_prefill(charge, 0.0, 0.0)
    return worker


def test_queued_tokens_that_the_worker_caches_do_not_count() -> None:
    assert score(NEW, queueing("d0", 8000, num_hit=7900)) == score(NEW, queueing("d1", 100, num_hit=0))
    assert score(NEW, queueing("d0", 8000, num_hit=7900)) < score(NEW, queueing("d1", 500, num_hit=0))
