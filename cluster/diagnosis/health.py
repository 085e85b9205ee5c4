"""Whether a service serves, and what is wrong with it, in a few words each. Pure."""

from enum import StrEnum

from cluster.messages.ids import Pool
from cluster.messages.operations import SchedulerStatus, ServiceSettings, ServiceStatus, WorkerCondition
from cluster.messages.views import CellState


class Health(StrEnum):
    SERVING = "serving"
    DEGRADED = "degraded"
    NOT_SERVING = "not serving"


def health_of(status: ServiceStatus) -> tuple[Health, list[str]]:
    """What is wrong comes with the health. Drains are no fault, since an operator wants them."""
    problems = [f"{store.name} is away" for store in status.stores if not store.is_there]
    if not status.schedulers:
        problems.append("no Scheduler answers")
    for cell in status.cells:
        if cell.state in (CellState.AWAY, CellState.NOT_READY) and len(status.cells) > 1:
            problems.append(f"cell {cell.name} is {cell.state}")
    serves = not status.schedulers  # the ingress replicas place by themselves
    for scheduler in status.schedulers:
        problems += _problems(scheduler, status.settings)
        serves = serves or any(worker.condition is not WorkerCondition.SUSPECTED for worker in scheduler.workers)
    if not serves:
        return Health.NOT_SERVING, [*problems, "no worker can be reached"]
    return (Health.DEGRADED if problems else Health.SERVING), problems


def _problems(scheduler: SchedulerStatus, settings: ServiceSettings) -> list[str]:
    problems = []
    for condition in (WorkerCondition.SUSPECTED, WorkerCondition.QUARANTINED, WorkerCondition.STALE):
        number = sum(worker.condition is condition for worker in scheduler.workers)
        if number:
            problems.append(f"{number} workers are {condition}")
    for pool in Pool:
        number, wanted = sum(worker.pool is pool for worker in scheduler.workers), settings.replicas.get(pool, 0)
        if number < wanted and not settings.is_scaled:
            problems.append(f"{number} of {wanted} {pool} workers report")
    has_both = {worker.pool for worker in scheduler.workers} == {*Pool}
    if scheduler.mismatch is not None:
        problems.append("the KV blocks of the pools differ")
    elif has_both and not any(worker.num_links for worker in scheduler.workers):
        problems.append("no link is proved")
    return problems
