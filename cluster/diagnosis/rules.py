"""All rules of `baton why`, and the order of their answers. Pure."""

from collections.abc import Callable, Iterable

from cluster.diagnosis.answer import Answer, RunningFacts, Weight
from cluster.diagnosis.handoffs import handoff_answers
from cluster.diagnosis.links import link_answers
from cluster.diagnosis.pools import pool_answers
from cluster.diagnosis.refusals import refusal_answers
from cluster.diagnosis.service import service_answers
from cluster.diagnosis.tiers import tier_answers
from cluster.diagnosis.waits import wait_answers
from cluster.diagnosis.workers import worker_answers

RULES: tuple[Callable[[RunningFacts], Iterable[Answer]], ...] = (
    service_answers,
    pool_answers,
    worker_answers,
    link_answers,
    handoff_answers,
    wait_answers,
    refusal_answers,
    tier_answers,
)


def answers(facts: RunningFacts) -> list[Answer]:
    """Faults first, then limits, then what is normal; each in the order of RULES."""
    found = [answer for rule in RULES for answer in rule(facts)]
    return sorted(found, key=lambda answer: list(Weight).index(answer.weight))
