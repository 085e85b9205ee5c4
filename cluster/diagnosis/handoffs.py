"""Why requests were not handed over: the reasons of the last placements. Pure."""

from collections.abc import Iterator

from cluster.diagnosis.answer import Answer, RunningFacts, Weight, in_cell, number, share
from cluster.messages.operations import PathCount, PathReason, SchedulerStatus

LEAST_SHARE = 0.05
"""Share of the last placements from which a reason is told. Lower tells of accidents; higher hides a reason behind the
others.
"""
SHORT_TOKENS = 256
"""Prompt tokens to compute up to which prompts are called short. Such a prompt takes an engine about as long as a step
that only decodes. Higher calls prompts short that another worker should compute; lower gives the predictions as the
reason where the prompts are.
"""

_WEIGHTS = {
    PathReason.NOT_PROVED: Weight.FAULT,
    PathReason.DISTRUSTED: Weight.FAULT,
    PathReason.BLIND: Weight.FAULT,
    PathReason.NO_PREFILL_WORKER: Weight.LIMIT,
    PathReason.NO_DECODE_WORKER: Weight.LIMIT,
}
_TODO = {
    PathReason.ASKED: "nothing: the header x-baton-path, or `ingress.allow_path_header: false` to forbid it",
    PathReason.NOT_POSSIBLE: "nothing: vLLM cannot take the KV of such requests from another engine",
    PathReason.ONE_TOKEN: "nothing: there is no second token to decode",
    PathReason.NO_PREFILL_WORKER: "more prefill workers, or see the answers on the prefill pool and its workers",
    PathReason.NO_DECODE_WORKER: "more decode workers, or see the answers on the decode pool and its workers",
    PathReason.BLIND: "find out why workers miss reports: the Scheduler's node, or its network, may be too busy",
    PathReason.NOT_PROVED: "see the answers on links",
    PathReason.DISTRUSTED: "see the answers on pairs that handed over wrongly",
    PathReason.DECODES_ITSELF: "nothing: on such engines both pools take whole requests. docs/scheduling.md",
    PathReason.DEARER: "nothing: a handoff would have cost more (docs/scheduling.md, what an option costs)",
}


def handoff_answers(facts: RunningFacts) -> Iterator[Answer]:
    for scheduler in facts.status.schedulers:
        yield from _of(scheduler)


def _of(scheduler: SchedulerStatus) -> Iterator[Answer]:
    total = sum(count.num for count in scheduler.paths)
    question = f"Why were requests{in_cell(scheduler)} not handed over?"
    if scheduler.mismatch is not None:
        yield Answer(
            question=question,
            answer="the KV blocks of the two pools differ, so no pair can ever hand over",
            evidence=[scheduler.mismatch],
            todo="make the engine arguments of the pools alike in what the evidence names (docs/models.md)",
            weight=Weight.FAULT,
        )
    for count in scheduler.paths:
        if count.reason is PathReason.HANDED_OVER or count.num < LEAST_SHARE * total:
            continue
        yield Answer(
            question=question,
            answer=_words(count),
            evidence=list(_evidence(count, total)),
            todo=_TODO[count.reason],
            weight=_WEIGHTS.get(count.reason, Weight.NORMAL),
        )


def _words(count: PathCount) -> str:
    if count.reason is PathReason.DEARER and count.mean_new_tokens <= SHORT_TOKENS:
        return "the prompts are short, or mostly cached: to compute them beside decodes costs less than a handoff"
    return count.reason.value


def _evidence(count: PathCount, total: int) -> Iterator[str]:
    yield f"{count.num} of the last {total} placements ({share(count.num, total)})"
    yield (
        f"their prompts had {number(count.mean_prompt_tokens)} tokens on average, "
        f"{number(count.mean_new_tokens)} of them to compute"
    )
    if count.reason is PathReason.DEARER:
        yield (
            f"the best handoff was predicted with {1e3 * count.mean_extra_ttft_s:+.0f} ms of TTFT and "
            f"{count.mean_extra_cost:+.3g} of cost beside the choice, on average"
        )
