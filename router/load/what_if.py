"""What a worker would be without some of the requests that decode on it. The worker itself does not change. Pure."""

from collections.abc import Iterable

from router.load.charge import Charge
from router.load.worker_state import WorkerState
from router.prediction.path_bias import PathBias


def without(worker: WorkerState, gone: Iterable[Charge], bias: PathBias, now: float) -> WorkerState:
    """A copy of the worker for predictions alone."""
    copy = worker.copied(bias, now)
    for charge in gone:
        copy.release(charge, now)
    return copy
