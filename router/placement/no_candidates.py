"""The answers to requests that no worker can take."""

from typing import Final

from cluster.messages.placement import PlacementRequest, Rejection
from router.load.live_workers import WorkersByPool

NO_WORKER_RETRY_S: Final = 5.0
"""Retry-After of a request that no worker can take, in seconds. A worker's restart takes tens of seconds. Lower only
adds load; higher leaves a service unused that has recovered.
"""


def no_worker(request: PlacementRequest, workers: WorkersByPool) -> Rejection:
    several = [*workers.prefills, *workers.decodes, *workers.draining_prefills, *workers.draining_decodes]
    is_full = any(worker.worker not in request.excluded for worker in several)
    why = "all workers have as many requests as they take" if is_full else "no worker can be reached"
    if request.path is not None:
        why = f"path {request.path} is asked for and no worker can take it"
    return Rejection(retry_after_s=NO_WORKER_RETRY_S, why=why, is_overload=is_full and request.path is None)


def no_room_again(*, is_paused: bool) -> Rejection:
    """To a request that has left its worker, and that no worker had room for as long as it could wait."""
    why = "it was paused" if is_paused else "its worker failed"
    return Rejection(retry_after_s=NO_WORKER_RETRY_S, why=f"{why}, and no worker has had room for it since")
