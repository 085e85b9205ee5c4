"""What a stage finds in a text, in the categories of OpenAI's moderations and a few of our own. Pure."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec


class Category(StrEnum):
    """What a text may be flagged for. The first thirteen are OpenAI's."""

    HARASSMENT = "harassment"
    HARASSMENT_THREATENING = "harassment/threatening"
    HATE = "hate"
    HATE_THREATENING = "hate/threatening"
    ILLICIT = "illicit"
    ILLICIT_VIOLENT = "illicit/violent"
    SELF_HARM = "self-harm"
    SELF_HARM_INTENT = "self-harm/intent"
    SELF_HARM_INSTRUCTIONS = "self-harm/instructions"
    SEXUAL = "sexual"
    SEXUAL_MINORS = "sexual/minors"
    VIOLENCE = "violence"
    VIOLENCE_GRAPHIC = "violence/graphic"
    PROMPT_INJECTION = "prompt-injection"
    """Text of a tool or of a document that gives the model orders."""
    PERSONAL_DATA = "personal-data"


class Level(StrEnum):
    """How likely a text is of a category."""

    NEGLIGIBLE = "negligible"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


LOW_FROM, MEDIUM_FROM, HIGH_FROM = 0.2, 0.5, 0.8
"""Least scores of the levels, which thresholds compare. A score is no probability: lists have scores that are set by
hand, and so have guards that name none. What share of texts a score of the classifier stands for depends on their
length (docs/safety-classifier.md). Higher lets more pass at each threshold; lower blocks more that is harmless.
"""


def level_of(score: float) -> Level:
    if score >= HIGH_FROM:
        return Level.HIGH
    if score >= MEDIUM_FROM:
        return Level.MEDIUM
    return Level.LOW if score >= LOW_FROM else Level.NEGLIGIBLE


class StageVerdict(msgspec.Struct, frozen=True):
    """What one stage says of one text."""

    stage: str
    version: str
    """Of the stage's lists, model or prompt."""
    scores: Mapping[Category, float] = {}
    """From 0 to 1; a category that is missing was not looked for."""
    error: str = ""
    """Why the text was not scanned. Scores mean nothing then."""

    @property
    def is_scanned(self) -> bool:
        return not self.error


def highest(scores: Iterable[Mapping[Category, float]]) -> dict[Category, float]:
    """The highest score of each category."""
    found: dict[Category, float] = {}
    for one in scores:
        for category, score in one.items():
            found[category] = max(score, found.get(category, 0.0))
    return found
