"""The dialect of OpenAI's `POST /v1/moderations`, for any classifier that speaks it. Pure.

A classifier has no prompt that a text could pose as a part of, so the text is sent as it is.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from api.safety.guards.dialects.chat_answer import decoded
from api.safety.guards.dialects.dialect import SAFE, UNSAFE, GuardNonsense, GuardRequest
from api.safety.guards.dialects.quoting import well_formed
from api.safety.verdict import MEDIUM_FROM, Category

_KNOWN = {category.value: category for category in Category}


class _ModerationResult(msgspec.Struct, frozen=True):
    flagged: bool
    categories: dict[str, bool | None] = {}
    category_scores: dict[str, Annotated[float, Meta(ge=0, le=1)] | None] = {}


class _Moderation(msgspec.Struct, frozen=True):
    results: Annotated[list[_ModerationResult], Meta(min_length=1, max_length=1)]


class ModerationsDialect:
    def __init__(self, model: str) -> None:
        self._model = model

    def request(self, text: str, *, is_answer: bool) -> GuardRequest:
        return GuardRequest("/moderations", {"model": self._model, "input": well_formed(text)})

    def scores(self, answer: bytes) -> Mapping[Category, float]:
        """What the classifier flags is at least MEDIUM, whatever its score. Categories that we do not have count as
        ILLICIT, and so does a flag for no category.
        """
        result = decoded(answer, _Moderation).results[0]
        scores: dict[Category, float] = {}
        for name in result.categories.keys() | result.category_scores.keys():
            score = _score_of(result.categories.get(name), result.category_scores.get(name))
            if score is not None:
                category = _KNOWN.get(name, Category.ILLICIT)
                scores[category] = max(score, scores.get(category, 0.0))
        if not scores:
            raise GuardNonsense("the classifier gives no score for any category")
        if result.flagged and max(scores.values()) < MEDIUM_FROM:
            scores[Category.ILLICIT] = UNSAFE
        return scores


def _score_of(is_flagged: bool | None, score: float | None) -> float | None:
    """None if the classifier has not looked for the category."""
    if score is None:
        return None if is_flagged is None else UNSAFE if is_flagged else SAFE
    return max(score, MEDIUM_FROM) if is_flagged else score
