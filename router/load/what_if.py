"""What a worker would be without some of the requests that decode on it. The worker itself does not change. Pure."""

from collections.abc import Iterable

from router.load.charge import Charge
from router.load.worker_state import WorkerState
from router.prediction.path_bias import PathBias


def without(worker: WorkerState, gone: Iterable[Charge], bias: PathBias, now: float) -> WorkerState:
    """A copy of the worker for predictions alone. Prompts are shared with the worker: requests that decode have none
    in its queue.
    """
    copy = WorkerState(worker.report, worker.model, bias, worker.reported_at)
    copy.stall_share = worker.stall_share
    copy.running = worker.running.copied(worker.stall_share, now)
    copy.charges, copy.prompts = dict(worker.charges), worker.prompts
    copy.inbound, copy.outbound = dict(worker.inbound), dict(worker.outbound)
    copy.kv_reserved, copy.inbound_prompt = worker.kv_reserved, worker.inbound_prompt
    copy.link_free_at, copy.room = worker.link_free_at, worker.room
    for charge in gone:
        copy.release(charge, now)
    return copy
