"""The stages of the screening as a replica has them, and what the guard says of a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from api.identity.caller import NO_KEY
from api.safety.classifiers.classifier import TextClassifier
from api.safety.guards.dialects.dialect import GuardNonsense
from api.safety.guards.guard import Guard, GuardUnavailable
from api.safety.policy import Policy, SafetyStage
from api.safety.scans.rules import Rules, TextRole, counted
from api.safety.verdict import Category, highest
from cluster.metrics.safety import SAFETY_FAILURES


class Tokens(NamedTuple):
    """The tokens of the served model."""

    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    most_characters: int
    """Characters of a request, at most, that are screened. The model could not read more."""


class Stages(NamedTuple):
    """What screens, with the lists that are in force."""

    rules: Rules
    rules_version: str
    classifier: TextClassifier | None
    guard: Guard | None
    tenant: str = NO_KEY
    """Whose texts they screen."""


@dataclass
class GuardNotes:
    """What the guard has said of one text."""

    scores: dict[Category, float] = field(default_factory=dict)
    error: str = ""
    is_nonsense: bool = False
    """The guard has answered, and not understandably. Whoever writes the text can provoke that."""
    about: str | None = None
    """The text that it has blocked; if there is none, the first one that it has not scored."""
    was_asked: bool = False
    is_recorded: bool = False
    """Whether it is on record what was done about the text."""
    blocked: set[Category] = field(default_factory=set)

    def fails_closed(self, policy: Policy) -> bool:
        """Whether the text is blocked because the guard has not scored it."""
        return self.is_nonsense or (bool(self.error) and policy.stage(SafetyStage.GUARD).fails_closed)


async def ask_guard(stages: Stages, text: str, policy: Policy, notes: GuardNotes, role: TextRole) -> None:
    """Ask the guard about a text, and note what it says. There is a guard."""
    assert stages.guard is not None
    try:
        deadline_s = policy.stage(SafetyStage.GUARD).deadline_s
        is_answer = role is TextRole.ANSWER
        scores = await stages.guard.scores(text, tenant=stages.tenant, is_answer=is_answer, deadline_s=deadline_s)
        scores = counted(role, scores)
    except (GuardUnavailable, GuardNonsense) as error:
        notes.was_asked = True
        SAFETY_FAILURES.labels(SafetyStage.GUARD).inc()
        notes.error = str(error) or type(error).__name__
        notes.about = text if notes.about is None else notes.about
        notes.is_nonsense |= isinstance(error, GuardNonsense)
        return
    notes.was_asked = True
    blocked = policy.blocked(scores)
    if blocked and not notes.blocked:
        notes.about = text
    notes.blocked.update(blocked)
    notes.scores = highest([notes.scores, scores])
