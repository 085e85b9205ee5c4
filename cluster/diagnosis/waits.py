"""Why requests wait for a placement. Pure."""

from collections.abc import Iterator

from cluster.diagnosis.answer import Answer, RunningFacts, Weight, in_cell
from cluster.messages.operations import SchedulerStatus
from cluster.messages.views import WaitReason

_MORE = "more workers (docs/capacity.md, docs/autoscaling.md), or looser objectives (docs/slo.md)"
_TODO = {
    WaitReason.NO_WORKER: ("see the answers on the pools and their workers", Weight.FAULT),
    WaitReason.NO_ROOM: ("more workers, or more memory for KV blocks (docs/capacity.md)", Weight.LIMIT),
    WaitReason.HARM: (_MORE, Weight.LIMIT),
    WaitReason.LATE: (_MORE, Weight.LIMIT),
    WaitReason.TENANT_SHARE: ("the weights of the tenants decide (docs/tenants-limits.md)", Weight.NORMAL),
    WaitReason.DUE: ("nothing: it is looked at again within 0.1 s", Weight.NORMAL),
}
"""What to do, and how much it matters."""


def wait_answers(facts: RunningFacts) -> Iterator[Answer]:
    for scheduler in facts.status.schedulers:
        num_looked_at = sum(scheduler.wait_reasons.values())
        for reason, num in sorted(scheduler.wait_reasons.items(), key=lambda item: -item[1]):
            todo, weight = _TODO[reason]
            yield Answer(
                question=f"Why do requests wait{in_cell(scheduler)}?",
                answer=reason.value,
                evidence=[
                    f"{num} of the first {num_looked_at} requests of the queue",
                    _waiting(scheduler),
                    _places(scheduler),
                ],
                todo=todo,
                weight=weight,
            )


def _waiting(scheduler: SchedulerStatus) -> str:
    by_class = ", ".join(f"{slo_class} {num}" for slo_class, num in scheduler.waiting.items())
    return f"waiting: {by_class}; for up to {scheduler.oldest_wait_s:.1f} s"


def _places(scheduler: SchedulerStatus) -> str:
    placed = sum(worker.num_placed for worker in scheduler.workers)
    most = sum(worker.max_requests for worker in scheduler.workers)
    return f"the workers have {placed} placed requests, and places for {most}"
