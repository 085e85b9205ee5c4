"""A second look at a text that was withheld, when somebody appeals: what each stage finds in it now, and what a stage
says that had no part in the decision. A person decides, and sees it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from api.safety.audit.decision_record import JudgedTexts, verdicts_of
from api.safety.audit.event import fingerprint
from api.safety.policy import SafetyStage
from api.safety.scans.rules import TextRole
from api.safety.scored_text import ANYTHING, InThread, looked_through
from api.safety.stages import Stages
from api.safety.verdict import Level, StageVerdict, level_of

SECOND = (SafetyStage.GUARD, SafetyStage.CLASSIFIER, SafetyStage.LISTS)
"""The stages that can give a second opinion, the best one first."""


class Appealed(NamedTuple):
    """The decision that the appeal is against."""

    is_answer: bool
    """Whether a model has written the text, and not a client."""
    categories: Sequence[str]
    """Empty if it was withheld because a stage had failed."""
    verdicts: Sequence[StageVerdict]
    text: str | None
    """What was kept of the text."""

    @property
    def deciding(self) -> set[str]:
        """The stages that had a part in the decision. One that has failed had none: it has not seen the text."""
        return {
            verdict.stage for verdict in self.verdicts if verdict.is_scanned and self.is_flagged(verdict, Level.LOW)
        }

    def is_flagged(self, verdict: StageVerdict, least: Level) -> bool:
        """Whether a stage says so of one of the categories, or of any if there are none, at this level or above."""
        order, of = list(Level), self.categories or verdict.scores
        levels = [level_of(score) for category, score in verdict.scores.items() if category in of]
        return any(order.index(level) >= order.index(least) for level in levels)


class Review(msgspec.Struct, frozen=True, kw_only=True):
    verdicts: Sequence[StageVerdict] = ()
    """Of all stages, now."""
    second: str = ""
    """The stage that had no part in the decision, and has scanned the text now. Empty if there is none."""
    is_confirmed: bool | None = None
    """Whether the second stage flags the text for one of the categories, at MEDIUM or above. None without one."""
    terms: Sequence[str] = ()
    """What the lists find, as the text has it."""
    error: str = ""
    """Why nothing was looked at."""


async def review_of(appealed: Appealed, stages: Stages, in_thread: InThread[Any]) -> Review:
    """What is found now in what was kept of the text."""
    if appealed.text is None:
        return Review(error="the text was not kept")
    roles = [TextRole.ANSWER] if appealed.is_answer else [TextRole.USER, TextRole.DOCUMENT]
    judges, notes = await looked_through(appealed.text, roles, stages, in_thread)
    found = JudgedTexts(judges, notes, fingerprint(appealed.text), None)
    verdicts = verdicts_of(stages, ANYTHING, found)
    second = second_opinion(verdicts, appealed.deciding)
    return Review(
        verdicts=verdicts,
        second="" if second is None else second.stage,
        is_confirmed=None if second is None else appealed.is_flagged(second, Level.MEDIUM),
        terms=[*dict.fromkeys(term for judge in judges for term in judge.terms)],
    )


def second_opinion(verdicts: Sequence[StageVerdict], deciding: set[str]) -> StageVerdict | None:
    """The verdict of the best stage that is independent of those that have decided."""
    by_stage = {verdict.stage: verdict for verdict in verdicts if verdict.is_scanned}
    return next((by_stage[stage] for stage in SECOND if stage in by_stage and stage not in deciding), None)
