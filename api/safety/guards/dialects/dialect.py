"""What all dialects of guards have in common: a request with a text, and scores from the answer. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from api.safety.verdict import Category

UNSAFE = 0.95
"""Score of what a guard names without a probability. Guards are wrong about one text in twenty and more. Lower than
HIGH_FROM lets the text pass at the loosest threshold; higher claims more than guards know.
"""
SAFE = 0.05
"""Score of what a guard has looked for and does not name, without a probability. From LOW_FROM on, every text would
leave doubt.
"""
WITHOUT_CATEGORY = 0.4
"""Most score of a hazard that no Category has, such as defective medical advice. At the level LOW, only the tightest
threshold blocks it; from MEDIUM_FROM on, policies would block by default what they cannot name.
"""


class GuardNonsense(ValueError):
    """The guard has answered, and the answer is no verdict. The text may be the cause of it, so that its author decides
    whether this happens. It is never taken for "safe".
    """


class GuardRequest(NamedTuple):
    """What is posted to the guard."""

    path: str
    """Below the endpoint's URL."""
    fields: Mapping[str, Any]
    """Of the body. Their names are the same for all texts."""


class GuardDialect(Protocol):
    """How one family of guards is asked, and how it answers."""

    def request(self, text: str, *, is_answer: bool) -> GuardRequest:
        """`is_answer`: whether a model has generated the text."""
        ...

    def scores(self, answer: bytes) -> Mapping[Category, float]:
        """The score of every category that the guard has looked for, from 0 to 1. Raises GuardNonsense."""
        ...


class HazardTable:
    """What the hazards of a guard are in our categories.

    A hazard that the table does not know counts as ILLICIT, with its full score: the guard calls the text unsafe, and
    ILLICIT is the general category. SEXUAL_MINORS, which no policy lets pass, would accuse a user of something else.
    A policy that does not look for ILLICIT lets unknown hazards pass.
    """

    def __init__(self, categories: Mapping[str, tuple[Category, ...]]) -> None:
        """`categories`: by the guard's names, in lower case. Empty for a hazard that no category has."""
        self._categories = categories
        self._looked_for = {category for known in categories.values() for category in known} | {Category.ILLICIT}

    def of_safe(self, score: float) -> dict[Category, float]:
        """The scores of a text that the guard calls safe. `score`: how likely it is unsafe all the same, for which the
        guard names no hazard.
        """
        return dict.fromkeys(self._looked_for, SAFE) | {Category.ILLICIT: score}

    def of_unsafe(self, hazards: Iterable[str], score: float) -> dict[Category, float]:
        """The scores of a text that the guard calls unsafe for these hazards, or for none that it names."""
        scores = dict.fromkeys(self._looked_for, SAFE)
        named = {hazard.strip().lower() for hazard in hazards} - {""}
        for hazard in named or {"unsafe"}:
            categories = self._categories.get(hazard, (Category.ILLICIT,))
            for category in categories:
                scores[category] = score
            if not categories:
                scores[Category.ILLICIT] = max(scores[Category.ILLICIT], min(score, WITHOUT_CATEGORY))
        return scores
