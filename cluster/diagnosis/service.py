"""What concerns the whole service: Schedulers, cells, stores, missing replicas. Pure."""

from collections.abc import Iterator

from cluster.diagnosis.answer import Answer, RunningFacts, Weight
from cluster.messages.views import CellState, CellView


def service_answers(facts: RunningFacts) -> Iterator[Answer]:
    if not facts.status.schedulers:
        yield Answer(
            question="Why is nothing known of the workers?",
            answer="no Scheduler answers: the ingress replicas place whole requests by themselves meanwhile",
            evidence=[f"{len(facts.status.cells)} cells, of which none has a Scheduler that answers"],
            todo="Serve replaces a Scheduler in some seconds. If it does not, `serve status` has the reason "
            "(docs/control-plane.md)",
            weight=Weight.FAULT,
        )
    for cell in facts.status.cells:
        if cell.state is not CellState.OPEN and len(facts.status.cells) > 1:
            yield _cell(cell, facts)
    for store in facts.status.stores:
        if not store.is_there:
            yield Answer(
                question=f"Why is {store.name} not used?",
                answer="the ingress replica that answers cannot reach it",
                evidence=["it is run by Baton" if store.is_embedded else "it is another server, by its URL"],
                todo="the log of the ingress has the reason; `baton doctor` tries it from here (docs/state.md)",
                weight=Weight.FAULT,
            )
    missing = facts.figures.by("baton_scrape_missing", "deployment")
    if missing:
        yield Answer(
            question="Why do figures lack replicas?",
            answer="replicas did not answer in time",
            evidence=[f"{deployment}: {number:.0f}" for deployment, number in missing.items()],
            todo="replicas that start do not answer yet. Otherwise `serve status` and their logs",
            weight=Weight.LIMIT,
        )


def _cell(cell: CellView, facts: RunningFacts) -> Answer:
    left = facts.figures.by("baton_cell_left_requests_total", "reason", cell=cell.name)
    evidence = [
        f"{cell.num_prefill} prefill and {cell.num_decode} decode workers, {cell.num_links} proved links; "
        f"{cell.num_open} requests are open in it and {cell.num_waiting} wait"
    ]
    if left:
        why = ", ".join(f"{reason} {number:.0f}" for reason, number in left.items())
        evidence.append(f"requests that left it for another cell {facts.during}: {why}")
    words = {
        CellState.DRAINING: ("an operator drains it", f"`baton cells open {cell.name}` ends it", Weight.NORMAL),
        CellState.AWAY: ("its Scheduler does not answer", "`serve status` has the reason", Weight.FAULT),
        CellState.NOT_READY: ("no pair of its workers can hand over", "see the answers on links", Weight.FAULT),
        CellState.OPEN: ("it takes requests", "", Weight.NORMAL),
    }
    answer, todo, weight = words[cell.state]
    return Answer(
        question=f"Why does cell {cell.name} take no new requests?",
        answer=answer,
        evidence=evidence,
        todo=todo,
        weight=weight,
    )
