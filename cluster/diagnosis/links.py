"""Which links are not proved, and which pairs are not trusted, and why. Pure."""

from collections.abc import Iterator

from cluster.diagnosis.answer import Answer, RunningFacts, Weight, in_cell
from cluster.messages.ids import Pool, WorkerId
from cluster.messages.operations import LinkDoubt, SchedulerStatus, UnprovedLink, WorkerCondition, WorkerStatus

NAMED = 3
"""Most pairs that one answer names. More fills the screen; fewer hides which workers are concerned."""
STARTING_S = 60.0
"""Age of a Scheduler up to which links that were never tried are normal, in seconds. Higher hides links that are never
tried; lower calls each start a fault.
"""

_TODO = {
    LinkDoubt.NEVER_TRIED: "wait: the Scheduler has links proved when placements want them, and 8 for each worker in "
    "advance (docs/transport.md)",
    LinkDoubt.PROBING: "wait: a first handoff takes seconds",
    LinkDoubt.FAILED: "repair what the error names (docs/transport.md); it is tried again by itself. The workers still "
    "take whole requests",
    LinkDoubt.DOUBTFUL: "wait for the next proof. If it comes back, look at the network between the two nodes",
}


def link_answers(facts: RunningFacts) -> Iterator[Answer]:
    for scheduler in facts.status.schedulers:
        conditions = {worker.worker: worker for worker in scheduler.workers}
        groups: dict[tuple[LinkDoubt, str | None], list[UnprovedLink]] = {}
        for link in scheduler.unproved:
            groups.setdefault((link.doubt, link.error), []).append(link)
        for (doubt, error), links in groups.items():
            yield _unproved(scheduler, doubt, error, links, conditions)
        yield from _distrusted(scheduler)


def _unproved(
    scheduler: SchedulerStatus,
    doubt: LinkDoubt,
    error: str | None,
    links: list[UnprovedLink],
    workers: dict[WorkerId, WorkerStatus],
) -> Answer:
    linked = _num_linked(scheduler)
    evidence = [f"{len(links)} of {scheduler.num_unproved} links that are not proved; {linked} are proved"]
    evidence += [f"{link.prefill} -> {link.decode}{_retry(link)}" for link in links[:NAMED]]
    if error is not None:
        evidence.append(f"the decode worker's error: {error}")
    leaving = {name for link in links for name in (link.prefill, link.decode) if _leaves(workers.get(name))}
    if leaving:
        evidence.append(f"draining or retiring: {', '.join(sorted(leaving)[:NAMED])}")
    is_fault = doubt is LinkDoubt.FAILED or (
        doubt is LinkDoubt.NEVER_TRIED and scheduler.up_s > STARTING_S and not linked
    )
    return Answer(
        question=f"Why are links{in_cell(scheduler)} not proved?",
        answer=doubt.value,
        evidence=evidence,
        todo=_TODO[doubt],
        weight=Weight.FAULT if is_fault else Weight.NORMAL,
    )


def _distrusted(scheduler: SchedulerStatus) -> Iterator[Answer]:
    convicted = [pair for pair in scheduler.distrusted if pair.barred_s > 0]
    suspected = [pair for pair in scheduler.distrusted if pair.barred_s <= 0]
    question = f"Why is a pair of workers{in_cell(scheduler)} not trusted?"
    if convicted:
        yield Answer(
            question=question,
            answer="verification has found its handoffs wrong twice: it hands nothing over for a while",
            evidence=[f"{one.prefill} -> {one.decode}: for {one.barred_s:.0f} s more" for one in convicted[:NAMED]],
            todo="nothing if it happens once. A worker that comes back here may have broken memory or a broken link: "
            "drain it (`baton drain`) and replace its node (docs/handoff.md, verification)",
            weight=Weight.FAULT,
        )
    if suspected:
        yield Answer(
            question=question,
            answer="verification has found a handoff wrong once: all its handoffs are verified until 20 are right",
            evidence=[f"{one.prefill} -> {one.decode}: {one.num_strikes} wrong" for one in suspected[:NAMED]],
            todo="nothing yet. docs/handoff.md, verification",
            weight=Weight.LIMIT,
        )


def _num_linked(scheduler: SchedulerStatus) -> int:
    return sum(worker.num_links for worker in scheduler.workers if worker.pool is Pool.DECODE)


def _leaves(worker: WorkerStatus | None) -> bool:
    return worker is not None and worker.condition in (WorkerCondition.DRAINING, WorkerCondition.RETIRING)


def _retry(link: UnprovedLink) -> str:
    return f", tried again in {link.retry_s:.0f} s" if link.retry_s > 0 else ""
