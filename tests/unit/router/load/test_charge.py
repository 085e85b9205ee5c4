from typing import Any

import pytest

from cluster.messages.ids import Path, WorkerId
from cluster.messages.placement import Placement, Prediction, Slo
from router.load.charge import Charge, Stage, Work
from router.prediction.output_lengths import LengthHistogram
from tests.unit.factories import a_placement_request

P0, D0 = WorkerId("p0"), WorkerId("d0")


def a_placement(path: Path, **fields: Any) -> Placement:
    prefill, decode = (None if path is Path.DECODE else P0), (None if path is Path.PREFILL else D0)
    return Placement(path=path, prefill=prefill, decode=decode, why="", slo=Slo(1.0, 0.05), **fields)


def a_charge(placement: Placement, **of_request: Any) -> Charge:
    request = a_placement_request("r", **of_request)
    return Charge(request, placement, LengthHistogram(), Work(0.1, 0.05, 0.2), 10, 6.0, None, 5.0)


@pytest.mark.parametrize(
    ("path", "workers"),
    [(Path.PREFILL_DECODE, [P0, D0, D0]), (Path.PREFILL, [P0, P0, P0]), (Path.DECODE, [D0, D0, D0])],
)
def test_request_runs_on_the_worker_of_its_stage(path: Path, workers: list[WorkerId]) -> None:
    charge = a_charge(a_placement(path))
    found = []
    for stage in Stage:
        charge.stage = stage
        found.append(charge.runs_on)
    assert found == workers


@pytest.mark.parametrize(
    ("of_request", "most"),
    [
        ({"max_output_tokens": 100}, 100.0),
        ({"max_output_tokens": 100, "num_output_tokens": 30}, 70.0),
        ({"num_output_tokens": 30}, float("inf")),
    ],
    ids=str,
)
def test_resumed_request_may_generate_the_rest(of_request: dict[str, int], most: float) -> None:
    assert a_charge(a_placement(Path.DECODE), **of_request).most_tokens == most


def test_request_takes_the_engine_time_that_is_predicted_of_all_its_workers() -> None:
    predicted = Prediction(Path.DECODE, None, D0, 0.2, 0.01, 0.0, 0.0, gpu_s=0.7, cost=0.0)
    assert a_charge(a_placement(Path.DECODE, predicted=predicted)).engine_s == 0.7


def test_request_without_a_prediction_takes_at_least_the_time_of_its_prompt() -> None:
    assert a_charge(a_placement(Path.DECODE)).engine_s == 0.1
