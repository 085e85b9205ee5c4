"""Why a worker gets nothing, or less than others. Pure."""

from collections.abc import Iterator

from cluster.diagnosis.answer import Answer, RunningFacts, Weight
from cluster.messages.operations import SchedulerStatus, WorkerCondition, WorkerStatus

SLOW_PACE = 1.2
"""Pace from which a worker counts as slow: its steps take so many times as long as usual for its kind. Higher is silent
on a node that is throttled; lower calls noise slow.
"""
BUSY_REQUESTS = 2.0
"""Mean number of open requests of the other workers of a pool from which a worker without any is told of. Higher is
silent for longer; lower tells of each pause.
"""
FULL_MEMORY = 0.95
"""Share of KV memory in use from which a worker counts as full. Higher is silent where requests wait for memory; lower
tells of workers that take more.
"""


def worker_answers(facts: RunningFacts) -> Iterator[Answer]:
    for scheduler in facts.status.schedulers:
        for worker in scheduler.workers:
            answer = _by_condition(worker) or _by_holds(worker, facts) or _beside_others(worker, scheduler)
            if answer is not None:
                yield answer


def _by_condition(worker: WorkerStatus) -> Answer | None:
    match worker.condition:
        case WorkerCondition.READY:
            return None
        case WorkerCondition.SUSPECTED:
            answer = "its connection has ended, or several ingress replicas cannot reach it"
            todo = "it is used again with its next report. If none comes, look at its node and its log"
            weight = Weight.FAULT
        case WorkerCondition.STALE:
            answer = "it has missed reports, so it is used last"
            todo = "look at its node: it may be too busy, or its network to the Scheduler slow"
            weight = Weight.FAULT
        case WorkerCondition.RETIRING:
            answer = "the autoscaler will stop it: it gets only what no other worker of its pool takes"
            todo, weight = "nothing (docs/autoscaling.md)", Weight.NORMAL
        case WorkerCondition.DRAINING:
            answer = "an operator drains it: it gets only what no other worker takes"
            todo = f"`baton drain {worker.worker} --undo` ends it"
            weight = Weight.NORMAL
        case WorkerCondition.QUARANTINED:
            answer = "it is in quarantine: it answers the quality probe wrongly, and gets no requests but probes"
            todo = (
                "`baton quality` shows the wrong answers (docs/quality.md, when a score falls). Two right answers in a "
                f"row end it, and so does `baton quality --release {worker.worker}`"
            )
            weight = Weight.FAULT
    left = "it is empty" if worker.is_empty else f"it has {worker.num_open} requests and {worker.num_leases} leases"
    evidence = [f"{left}; its last report is {worker.report_age_s:.1f} s old"]
    if worker.wrong_answers is not None:
        evidence.append(f"it is in quarantine: {worker.wrong_answers}")
    return _answer(worker, answer, evidence, todo, weight)


def _by_holds(worker: WorkerStatus, facts: RunningFacts) -> Answer | None:
    if not worker.num_holds:
        return None
    held = len(facts.figures.by("baton_hold_seconds", "worker"))
    return _answer(
        worker,
        "ingress replicas could not reach it, and get no placement on it for a while",
        [f"{worker.num_holds} ingress replicas, for {worker.hold_s:.0f} s more; {held} workers are held in all"],
        "many ingress replicas: look at the worker's node. One of them with many workers: look at the network of that "
        "ingress replica. Holds end by themselves",
        Weight.FAULT,
    )


def _beside_others(worker: WorkerStatus, scheduler: SchedulerStatus) -> Answer | None:
    others = [one for one in scheduler.workers if one.pool is worker.pool and one.worker != worker.worker]
    if worker.pace >= SLOW_PACE:
        return _answer(
            worker,
            "it is slow, so placements on it are predicted to take longer",
            [f"its steps take {worker.pace:.2f} times as long as usual for its kind of engine"],
            "compare its node with the others: clocks of the GPU, temperature, other processes",
            Weight.LIMIT,
        )
    if worker.kv_usage >= FULL_MEMORY:
        return _answer(
            worker,
            "its KV memory is full: new requests wait for memory there",
            [f"{worker.kv_usage:.0%} in use, {worker.num_running} requests run, {worker.num_waiting} wait in it"],
            "more workers, or more KV memory for each (docs/capacity.md)",
            Weight.LIMIT,
        )
    mean = sum(one.num_open for one in others) / len(others) if others else 0.0
    if worker.num_open or mean < BUSY_REQUESTS:
        return None
    evidence = [f"the other {len(others)} workers of the pool have {mean:.1f} requests on average"]
    if not worker.num_links:
        evidence.append("it has no proved link")
        return _answer(
            worker,
            "it has no proved link, so it gets no handoffs, and whole requests cost less elsewhere",
            evidence,
            "see the answers on links",
            Weight.FAULT,
        )
    evidence.append(f"it has {worker.num_links} proved links, and its last report is {worker.report_age_s:.1f} s old")
    return _answer(
        worker,
        "no fault is known: placements cost less elsewhere, often where the prefix of a prompt is cached",
        evidence,
        "ingress.keep_receipts shows the options of each request (docs/slo.md, what happened to a request)",
        Weight.NORMAL,
    )


def _answer(worker: WorkerStatus, answer: str, evidence: list[str], todo: str, weight: Weight) -> Answer:
    return Answer(
        question=f"Why does {worker.pool} worker {worker.worker} get few requests?",
        answer=answer,
        evidence=evidence,
        todo=todo,
        weight=weight,
    )
