"""A reviewer sees what all stages find now, and the opinion of one that had no part in the decision."""

from collections.abc import Callable
from typing import Any

import pytest

from api.safety.policy import SafetyStage
from api.safety.review import Appealed, review_of, second_opinion
from api.safety.scans.rules import RuleEntry, Rules, TextRole, WordList
from api.safety.stages import Stages
from api.safety.verdict import Category, Level, StageVerdict

RULES = Rules([WordList(category=Category.VIOLENCE, entries=[RuleEntry(score=0.9, terms=["pipe bomb", "glue"])])])
STAGES = Stages(RULES, "1", None, None)
LISTS, CLASSIFIER, GUARD = SafetyStage.LISTS, SafetyStage.CLASSIFIER, SafetyStage.GUARD


def verdict(stage: SafetyStage, score: float = 0.0, error: str = "") -> StageVerdict:
    return StageVerdict(stage, "1", {Category.VIOLENCE: score, Category.HATE: 0.9}, error)


def appealed(*verdicts: StageVerdict, text: str | None = "A pipe bomb, and glue: a p.i.p.e bomb.") -> Appealed:
    return Appealed(False, [str(Category.VIOLENCE)], verdicts, text)


async def at_once(work: Callable[[], Any]) -> Any:
    return work()


@pytest.mark.parametrize(
    ("then", "now", "second"),
    [
        ([verdict(LISTS, 0.9)], [verdict(LISTS), verdict(CLASSIFIER), verdict(GUARD)], GUARD),
        ([verdict(LISTS, 0.3), verdict(GUARD, 0.9)], [verdict(LISTS), verdict(CLASSIFIER), verdict(GUARD)], CLASSIFIER),
        ([verdict(CLASSIFIER, 0.9)], [verdict(LISTS), verdict(CLASSIFIER), verdict(GUARD, error="away")], LISTS),
        ([verdict(GUARD, error="away")], [verdict(LISTS), verdict(GUARD)], GUARD),
        ([verdict(LISTS, 0.9)], [verdict(LISTS, 0.9)], None),
    ],
)
def test_second_opinion_is_of_the_best_stage_that_did_not_decide(
    then: list[StageVerdict], now: list[StageVerdict], second: SafetyStage | None
) -> None:
    found = second_opinion(now, appealed(*then).deciding)
    assert (None if found is None else found.stage) == second


async def test_review_has_the_terms_and_the_opinion() -> None:
    review = await review_of(appealed(verdict(CLASSIFIER, 0.9)), STAGES, at_once)
    assert (review.second, review.is_confirmed) == (LISTS, True)
    assert review.terms == ["pipe bomb", "glue", "p.i.p.e bomb"]
    alone = await review_of(appealed(verdict(LISTS, 0.9)), STAGES, at_once)
    assert (alone.second, alone.is_confirmed, len(alone.verdicts)) == ("", None, 2)


@pytest.mark.parametrize(("is_answer", "terms"), [(False, ["order", "question"]), (True, ["reply"])])
async def test_text_is_read_as_what_it_was(is_answer: bool, terms: list[str]) -> None:
    """Of an input it is not known whose text it was: of a user, or of a tool."""
    roles = {"order": TextRole.DOCUMENT, "question": TextRole.USER, "reply": TextRole.ANSWER}
    lists = [
        WordList(category=Category.VIOLENCE, entries=[RuleEntry(score=0.9, terms=[term])], roles=[role])
        for term, role in roles.items()
    ]
    stages = Stages(Rules(lists), "1", None, None)
    asked = Appealed(is_answer, ["violence"], [], "An order, a question, a reply.")
    assert sorted((await review_of(asked, stages, at_once)).terms) == terms


def test_text_that_a_stage_has_failed_to_scan_is_confirmed_by_any_category() -> None:
    """Such an event has no categories."""
    appealed = Appealed(False, [], [verdict(GUARD, error="away")], "text")
    assert appealed.is_flagged(verdict(GUARD, 0.0), Level.MEDIUM)
    assert not appealed.is_flagged(StageVerdict(GUARD, "1", {Category.HATE: 0.3}), Level.MEDIUM)


async def test_text_that_was_not_kept_has_no_review() -> None:
    review = await review_of(appealed(verdict(LISTS, 0.9), text=None), STAGES, at_once)
    assert (review.error, review.verdicts) == ("the text was not kept", ())
