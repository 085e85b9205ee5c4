"""Why a pool is idle, or has fewer workers than it should. Pure."""

from collections import Counter
from collections.abc import Iterator

from cluster.diagnosis.answer import Answer, RunningFacts, Weight, in_cell, usable
from cluster.messages.ids import Pool
from cluster.messages.operations import PathReason, SchedulerStatus, WorkerCondition

_GENERATES_ALONE = {Pool.PREFILL: "decode", Pool.DECODE: "prefill"}
"""The other pool, by pool."""


def pool_answers(facts: RunningFacts) -> Iterator[Answer]:
    for scheduler in facts.status.schedulers:
        for pool in Pool:
            yield from _missing(facts, scheduler, pool)
            yield from _idle(facts, scheduler, pool)


def _missing(facts: RunningFacts, scheduler: SchedulerStatus, pool: Pool) -> Iterator[Answer]:
    settings = facts.status.settings
    wanted = settings.replicas.get(pool, 0)
    known = [worker for worker in scheduler.workers if worker.pool is pool]
    if settings.is_scaled or len(known) >= wanted:
        return
    yield Answer(
        question=f"Why has the {pool} pool{in_cell(scheduler)} fewer workers than the config?",
        answer=f"{wanted - len(known)} of {wanted} workers do not report to the Scheduler",
        evidence=[f"{pool}.replicas is {wanted}; {len(known)} report"],
        todo="`serve status` shows replicas that start, fail or have no node; .baton/logs/serve.log has their errors. "
        "docs/troubleshooting.md, a worker gets no requests, causes (a) to (c)",
        weight=Weight.FAULT,
    )


def _idle(facts: RunningFacts, scheduler: SchedulerStatus, pool: Pool) -> Iterator[Answer]:
    known = [worker for worker in scheduler.workers if worker.pool is pool]
    if not known or any(worker.num_open for worker in known):
        return
    question = f"Why is the {pool} pool{in_cell(scheduler)} idle?"
    conditions = Counter(worker.condition for worker in known)
    able = [worker for worker in usable(scheduler) if worker.pool is pool]
    if not able:
        found = ", ".join(f"{number} {condition}" for condition, number in conditions.items())
        is_wanted = {*conditions} <= {WorkerCondition.DRAINING, WorkerCondition.RETIRING}
        yield Answer(
            question=question,
            answer="none of its workers gets requests like any other",
            evidence=[f"of {len(known)} workers: {found}"],
            todo="`baton drain WORKER --undo` ends a drain" if is_wanted else "see the answers on its workers",
            weight=Weight.LIMIT if is_wanted else Weight.FAULT,
        )
        return
    total = sum(count.num for count in scheduler.paths)
    open_elsewhere = scheduler.num_open + sum(scheduler.waiting.values())
    if not open_elsewhere:
        yield Answer(
            question=question,
            answer="no request is open: there is no load now",
            evidence=[f"0 open and 0 waiting requests; {total} recent placements are remembered"],
            todo="",
        )
        return
    used = sum(count.num for count in scheduler.paths if count.reason is PathReason.HANDED_OVER)
    yield Answer(
        question=question,
        answer=f"the open requests run whole on workers of the {_GENERATES_ALONE[pool]} pool",
        evidence=[f"{scheduler.num_open} open requests; {used} of the last {total} placements were handed over"],
        todo="the answers on handoffs say why",
        weight=Weight.LIMIT,
    )
