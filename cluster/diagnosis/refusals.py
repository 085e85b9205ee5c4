"""Why requests are refused: by the Scheduler, by limits, by quarantine, at the edge. Pure."""

from collections.abc import Iterator

from cluster.diagnosis.answer import Answer, RunningFacts, Weight, number, share

QUESTION = "Why are requests refused?"
NAMED = 5
"""Most codes or classes that one answer names. More fills the screen; fewer hides rare ones."""

_BY_SCHEDULER = {
    "overload": (
        "the load: placing them would have made others miss their objectives, or they would have been late",
        "more workers (docs/capacity.md, docs/autoscaling.md), or looser objectives (docs/slo.md)",
        Weight.LIMIT,
    ),
    "no_worker": (
        "no worker could take them for as long as their SLO class waits",
        "see the answers on the pools and their workers",
        Weight.FAULT,
    ),
    "quarantined": (
        "quarantine: engines were lost with the same request before",
        "find out what is special about it: `engines_lost` in its receipt (docs/handoff.md, a request that ends "
        "engines)",
        Weight.FAULT,
    ),
}
"""What the Scheduler's answers mean, what to do, and how much it matters."""


def refusal_answers(facts: RunningFacts) -> Iterator[Answer]:
    yield from _by_scheduler(facts)
    yield from _by_limits(facts)
    yield from _at_the_edge(facts)


def _by_scheduler(facts: RunningFacts) -> Iterator[Answer]:
    answers = facts.figures.by("baton_placements_total", "answer")
    total = sum(answers.values())
    quarantined = sum(scheduler.num_quarantined for scheduler in facts.status.schedulers)
    for kind, (words, todo, weight) in _BY_SCHEDULER.items():
        if not answers.get(kind):
            continue
        evidence = [f"{number(answers[kind])} of {number(total)} placements {facts.during}"]
        if kind == "overload":
            evidence += _by_class(facts)
        if kind == "quarantined":
            evidence.append(f"the loss of an engine is remembered of {quarantined} requests")
        yield Answer(question=QUESTION, answer=words, evidence=evidence, todo=todo, weight=weight)


def _by_class(facts: RunningFacts) -> list[str]:
    refused = facts.figures.by("baton_goodput_requests_total", "slo_class", result="rejected")
    return [
        f"{slo_class}: {number(refused[slo_class])} of {number(asked)} requests "
        f"({share(refused[slo_class], asked)}) were refused, for any reason"
        for slo_class, asked in facts.figures.by("baton_goodput_requests_total", "slo_class").items()
        if slo_class in refused
    ]


def _by_limits(facts: RunningFacts) -> Iterator[Answer]:
    decisions = facts.figures.by("baton_limit_decisions_total", "decision")
    if denied := decisions.get("denied"):
        yield Answer(
            question=QUESTION,
            answer="limits: a limit of a key, project, tenant, end user or model had no room",
            evidence=[f"{number(denied)} of {number(sum(decisions.values()))} decisions {facts.during}"],
            todo="the message to the client names the limit: raise it, or leave it (docs/tenants-limits.md)",
            weight=Weight.LIMIT,
        )


def _at_the_edge(facts: RunningFacts) -> Iterator[Answer]:
    codes = facts.figures.by("baton_http_refusals_total", "code")
    if codes:
        shown = [f"{code}: {number(times)}" for code, times in [*codes.items()][:NAMED]]
        yield Answer(
            question=QUESTION,
            answer="at the edge, before they reached a route",
            evidence=[f"{facts.during}, by error code: {', '.join(shown)}"],
            todo="docs/troubleshooting.md, requests are refused, has the codes",
        )
