"""The answer to a request that no worker can take."""

from typing import Final

from cluster.messages.placement import PlacementRequest, Rejection
from router.placement.candidates import Roster

NO_WORKER_RETRY_S: Final = 5.0
"""A worker's restart takes tens of seconds: sooner only adds load, much later wastes a recovered service."""


def no_worker(request: PlacementRequest, roster: Roster) -> Rejection:
    workers = [*roster.prefills, *roster.decodes]
    is_anybody = any(worker.worker not in request.excluded for worker in workers)
    why = "all workers have as many requests as they take" if is_anybody else "no worker can be reached"
    if request.path is not None:
        why = f"path {request.path} is asked for and no worker can take it"
    return Rejection(retry_after_s=NO_WORKER_RETRY_S, why=why, is_overload=is_anybody and request.path is None)
