from typing import Any

import pytest

from cluster.diagnosis.health import Health, health_of
from cluster.messages.operations import StoreStatus, WorkerCondition
from cluster.messages.views import CellState
from tests.unit.statuses import a_cell_view, a_scheduler_status, a_service_status, a_worker_status

P0, D0 = a_worker_status("p0"), a_worker_status("d0")


def of(*workers: Any, **fields: Any) -> tuple[Health, str]:
    health, problems = health_of(a_service_status(a_scheduler_status(*workers), **fields))
    return health, "; ".join(problems)


def test_service_serves() -> None:
    assert of(P0, D0) == (Health.SERVING, "")


def test_drained_worker_is_no_fault() -> None:
    assert of(P0, D0, a_worker_status("d1", condition=WorkerCondition.DRAINING)) == (Health.SERVING, "")


@pytest.mark.parametrize(
    ("workers", "fields", "problem"),
    [
        ((P0, D0, a_worker_status("d1", condition=WorkerCondition.STALE)), {}, "1 workers are stale"),
        ((P0, D0, a_worker_status("d1", condition=WorkerCondition.QUARANTINED)), {}, "1 workers are quarantined"),
        ((D0,), {}, "0 of 1 prefill workers report"),
        ((a_worker_status("p0", num_links=0), a_worker_status("d0", num_links=0)), {}, "no link is proved"),
        ((P0, D0), {"stores": [StoreStatus(name="Redis", is_there=False, is_embedded=True)]}, "Redis is away"),
        ((P0, D0), {"cells": [a_cell_view("a"), a_cell_view("b", CellState.AWAY)]}, "cell b is away"),
    ],
)
def test_service_is_degraded(workers: tuple[Any, ...], fields: dict[str, Any], problem: str) -> None:
    health, problems = of(*workers, **fields)
    assert health is Health.DEGRADED
    assert problem in problems


@pytest.mark.parametrize("workers", [(), (a_worker_status("d0", condition=WorkerCondition.SUSPECTED),)])
def test_service_without_a_worker_does_not_serve(workers: tuple[Any, ...]) -> None:
    health, problems = of(*workers)
    assert health is Health.NOT_SERVING
    assert "no worker can be reached" in problems


def test_ingress_replicas_serve_without_a_scheduler() -> None:
    health, problems = health_of(a_service_status())
    assert (health, problems) == (Health.DEGRADED, ["no Scheduler answers"])
