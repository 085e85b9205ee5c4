"""The times of a worker that is slower than others of its kind."""

import random

import msgspec
import pytest

from router.prediction.learned_latency import LatencyModel
from router.prediction.worker_model import WorkerModel
from tests.unit.latency_truth import GPU, decode_step, exact_s, measured, mixed_step


def ran(worker: WorkerModel, factor: float, num_steps: int, seed: int = 0) -> None:
    """The worker runs steps that take `factor` times what they take on other workers, with noise."""
    rng = random.Random(seed)
    for _ in range(num_steps):
        worker.observe(measured(GPU.scaled(factor), mixed_step(rng), rng))


def a_kind(paces: list[float]) -> list[WorkerModel]:
    """Workers of one kind with these paces, after some seconds of work that they do side by side."""
    kind = LatencyModel(GPU)
    workers = [WorkerModel(kind) for _ in paces]
    for turn in range(60):
        for worker, pace in zip(workers, paces, strict=True):
            ran(worker, pace, 5, seed=turn)
    return workers


def mean_ratio(worker: WorkerModel) -> float:
    """Predicted to true time of steps, where all terms have the usual size."""
    rng = random.Random(7)
    steps = [mixed_step(rng) for _ in range(100)]
    predicted = sum(exact_s(worker.times, step) for step in steps)
    return predicted / sum(exact_s(GPU, step) for step in steps)


def test_slow_worker_is_known_and_slows_no_other() -> None:
    slow, *others = a_kind([1.5, 1.0, 1.0, 1.0])
    assert mean_ratio(slow) == pytest.approx(1.5, rel=0.08)
    for worker in others:
        assert mean_ratio(worker) == pytest.approx(1.0, rel=0.08)


def test_slow_worker_that_gets_other_work_makes_that_work_no_dearer_on_others() -> None:
    kind, rng = LatencyModel(GPU), random.Random(3)
    slow, *others = (WorkerModel(kind) for _ in range(4))
    for _ in range(600):
        for worker in others:
            worker.observe(measured(GPU, decode_step(rng), rng))
        slow.observe(measured(GPU.scaled(1.5), mixed_step(rng), rng))
    assert mean_ratio(others[0]) == pytest.approx(1.0, rel=0.08)
    assert mean_ratio(slow) == pytest.approx(1.5, rel=0.08)


def test_workers_of_one_pace_share_one_model() -> None:
    workers = a_kind([1.0, 1.0, 1.0])
    assert all(worker.times is worker.kind.times for worker in workers)


def test_kind_that_is_slow_as_a_whole_has_no_slow_workers() -> None:
    workers = a_kind([2.0, 2.0])
    assert [worker.pace for worker in workers] == [1.0, 1.0]
    assert mean_ratio(workers[0]) == pytest.approx(2.0, rel=0.08)


def test_worker_that_recovers_is_a_usual_one_again() -> None:
    slow, other = a_kind([1.5, 1.0])
    for turn in range(60):
        ran(slow, 1.0, 5, seed=turn)
        ran(other, 1.0, 5, seed=turn)
    assert slow.pace == other.pace == 1.0


@pytest.mark.parametrize("seconds", [1e-9, 0.0, -1.0, 1e9, float("nan")])
def test_step_that_cannot_be_true_teaches_no_pace(seconds: float) -> None:
    (worker,) = a_kind([1.0])
    step = mixed_step(random.Random(1))
    worker.observe(msgspec.structs.replace(step, seconds=seconds))
    assert worker.pace == 1.0


def test_one_stalled_step_is_no_pace() -> None:
    (worker,) = a_kind([1.0])
    step = mixed_step(random.Random(1))
    worker.observe(msgspec.structs.replace(step, seconds=100 * exact_s(GPU, step)))
    assert worker.pace == 1.0
