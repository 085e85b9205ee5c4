"""Which tier of KV blocks never hits, and why. Pure."""

from collections.abc import Iterator

from cluster.diagnosis.answer import Answer, RunningFacts, Weight, number, share
from cluster.messages.ids import Pool
from cluster.messages.operations import TierSettings, WorkerStatus

BYTES_PER_GIB = 1 << 30
LEAST_PROMPT_TOKENS = 10_000
"""Prompt tokens of a pool below which nothing is said of its tiers. Lower judges by chance; higher is silent for long
after a start.
"""
BUSY_MEMORY = 0.7
"""Share of KV memory in use, on average, from which a pool without a DRAM tier is told of one. Higher is silent where
prompts are computed again; lower tells of tiers that would stay empty.
"""


def tier_answers(facts: RunningFacts) -> Iterator[Answer]:
    for pool in Pool:
        workers = [worker for worker in facts.workers if worker.pool is pool]
        sources = facts.figures.by("baton_prompt_tokens_total", "source", pool=pool)
        total = sum(sources.values())
        if not workers or total < LEAST_PROMPT_TOKENS:
            continue
        settings = facts.status.settings.tiers.get(pool, TierSettings())
        evidence = [
            f"{number(total)} prompt tokens {facts.during}: "
            + ", ".join(f"{share(tokens, total)} {source}" for source, tokens in sources.items())
        ]
        if not sources.get("local"):
            yield _memory(pool, evidence)
        if settings.dram_gib is None:
            yield from _off(pool, workers, evidence)
        elif not sources.get("offloaded"):
            computed = sources.get("computed", 0.0)
            yield _never_hits(pool, settings, workers, computed, bool(sources.get("local")), evidence)


def _memory(pool: Pool, evidence: list[str]) -> Answer:
    return Answer(
        question=f"Why does the engines' own memory of the {pool} pool never hit?",
        answer="no prompt began like one that its worker had: the prefixes are unique, or shorter than a KV block",
        evidence=evidence,
        todo="nothing, if prompts share no beginning. Otherwise put what they share first: the system prompt, then "
        "documents, then what changes. Tenants share nothing unless they have opted in (docs/tenants.md)",
    )


def _off(pool: Pool, workers: list[WorkerStatus], evidence: list[str]) -> Iterator[Answer]:
    usage = sum(worker.kv_usage for worker in workers) / len(workers)
    if usage < BUSY_MEMORY:
        return
    yield Answer(
        question=f"Why does the DRAM tier of the {pool} pool never hit?",
        answer="there is none, and the engines' memory is nearly full: what it drops is computed again",
        evidence=[*evidence, f"{usage:.0%} of the KV memory is in use; {pool}.tiers.dram_gib is not set"],
        todo=f"set {pool}.tiers.dram_gib, as far as the nodes have memory (docs/tiers.md)",
        weight=Weight.LIMIT,
    )


def _never_hits(
    pool: Pool,
    settings: TierSettings,
    workers: list[WorkerStatus],
    computed: float,
    has_local_hits: bool,
    evidence: list[str],
) -> Answer:
    """The cases, in this order:

    1. No cache hits at all: prompts share nothing.
    2. The tier is smaller than the memory before it, so it has little that the memory has not.
    3. Less was computed than fits into memory, so nothing was dropped yet.
    4. Blocks are dropped from the tier before their prompts come back.
    """
    memory = sum(worker.kv_capacity_tokens for worker in workers)
    per_token = max((worker.kv_bytes_per_token for worker in workers), default=0)
    tier = (settings.dram_gib or 0.0) * BYTES_PER_GIB * len(workers) / per_token if per_token else 0.0
    sizes = f"the engines' memory has {number(memory)} tokens, the DRAM tier {number(tier)}, of all workers together"
    weight, todo = Weight.LIMIT, f"a larger {pool}.tiers.dram_gib, or a disk tier (docs/tiers.md)"
    if not has_local_hits:
        answer, weight = "the prefixes are unique: the engines' own memory never hits either", Weight.NORMAL
        todo = f"without shared prefixes the tier only costs memory: leave {pool}.tiers out"
    elif tier and tier <= memory:
        answer = "it is too small: it has hardly more than the engines' own memory, which is asked first"
    elif memory and computed <= memory:
        answer = "the engines' memory has dropped nothing yet: all that was computed fits into it"
        weight = Weight.NORMAL
        todo = "nothing: the tier is used once the memory is full"
    else:
        answer = "blocks are dropped from it before their prompts come back"
    return Answer(
        question=f"Why does the DRAM tier of the {pool} pool never hit?",
        answer=answer,
        evidence=[*evidence, sizes, f"{number(computed)} tokens were computed"],
        todo=todo,
        weight=weight,
    )
