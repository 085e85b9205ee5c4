"""What a Scheduler tells operators, with defaults, so that a test names only what it is about."""

from typing import Any

from cluster.diagnosis.answer import RunningFacts
from cluster.diagnosis.figures import Figures
from cluster.messages.ids import CellName, Pool, WorkerId
from cluster.messages.operations import (
    PathCount,
    PathReason,
    SchedulerStatus,
    ServiceSettings,
    ServiceStatus,
    StoreStatus,
    WorkerCondition,
    WorkerStatus,
)
from cluster.messages.views import CellState, CellView


def a_worker_status(worker: str = "d0", **fields: Any) -> WorkerStatus:
    """Of a prefill worker if its name starts with p, else of a decode worker."""
    defaults: dict[str, Any] = {
        "pool": Pool.PREFILL if worker.startswith("p") else Pool.DECODE,
        "host": "10.0.0.1",
        "condition": WorkerCondition.READY,
        "report_age_s": 0.1,
        "num_placed": fields.get("num_open", 0),
        "num_open": 0,
        "num_running": 0,
        "num_waiting": 0,
        "num_leases": 0,
        "max_requests": 512,
        "kv_usage": 0.1,
        "kv_capacity_tokens": 10_000,
        "kv_bytes_per_token": 1 << 20,
        "num_links": 1,
    }
    return WorkerStatus(worker=WorkerId(worker), **(defaults | fields))


def a_scheduler_status(*workers: WorkerStatus, **fields: Any) -> SchedulerStatus:
    defaults: dict[str, Any] = {
        "epoch": 7,
        "up_s": 3600.0,
        "num_open": sum(worker.num_open for worker in workers),
        "waiting": {},
        "oldest_wait_s": 0.0,
        "unproved": [],
        "num_unproved": len(fields.get("unproved", [])),
        "distrusted": [],
        "paths": [],
        "num_quarantined": 0,
    }
    return SchedulerStatus(workers=list(workers), **(defaults | fields))


def a_service_status(*schedulers: SchedulerStatus, **fields: Any) -> ServiceStatus:
    defaults: dict[str, Any] = {
        "application": "baton",
        "settings": ServiceSettings(version="1", model="demo", replicas={Pool.PREFILL: 1, Pool.DECODE: 1}),
        "replica_up_s": 60.0,
        "cells": [a_cell_view()],
        "stores": [StoreStatus(name="PostgreSQL", is_there=True, is_embedded=True)],
    }
    return ServiceStatus(schedulers=list(schedulers), **(defaults | fields))


def a_cell_view(name: str = "main", state: CellState = CellState.OPEN) -> CellView:
    return CellView(
        name=CellName(name), state=state, num_prefill=1, num_decode=1, num_links=1, num_open=3, num_waiting=2
    )


def a_path_count(reason: PathReason, num: int = 10, **fields: Any) -> PathCount:
    return PathCount(reason=reason, num=num, **({"mean_prompt_tokens": 2000.0, "mean_new_tokens": 1000.0} | fields))


def facts_of(*schedulers: SchedulerStatus, page: str = "", **fields: Any) -> RunningFacts:
    """`page`: of metrics; `fields`: of the ServiceStatus."""
    return RunningFacts(status=a_service_status(*schedulers, **fields), figures=Figures.of(page))
