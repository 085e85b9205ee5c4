"""What is done about which text: policies as data, each of which its content names. Pure.

A tenant has a policy (conf/safety/). A request may tighten it for itself by `safety_settings`, and never loosen it.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from api.safety.verdict import Category, Level, level_of


class Threshold(StrEnum):
    """The likelihood from which a text is blocked, from the loosest to the tightest."""

    OFF = "off"
    ONLY_HIGH = "block_only_high"
    MEDIUM = "block_medium_and_above"
    LOW = "block_low_and_above"

    def blocks(self, score: float) -> bool:
        return level_of(score) in _BLOCKED[self]

    def tightened(self, other: "Threshold") -> "Threshold":
        """The tighter one of both."""
        order = list(Threshold)
        return max(self, other, key=order.index)


_BLOCKED: Mapping[Threshold, frozenset[Level]] = {
    Threshold.OFF: frozenset(),
    Threshold.ONLY_HIGH: frozenset({Level.HIGH}),
    Threshold.MEDIUM: frozenset({Level.HIGH, Level.MEDIUM}),
    Threshold.LOW: frozenset({Level.HIGH, Level.MEDIUM, Level.LOW}),
}
NEVER_OFF: Mapping[Category, Threshold] = {Category.SEXUAL_MINORS: Threshold.LOW}
"""The loosest thresholds that a policy may have."""


class SafetyStage(StrEnum):
    """In the order in which they run, the cheapest first."""

    LISTS = "lists"
    PERSONAL_DATA = "personal_data"
    CLASSIFIER = "classifier"
    GUARD = "guard"


class Runs(StrEnum):
    """When a stage runs."""

    NEVER = "never"
    IN_DOUBT = "in_doubt"
    """If the stages before it leave doubt: a score that is neither negligible nor blocked."""
    ALWAYS = "always"


class StagePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    runs: Runs = Runs.ALWAYS
    fails_closed: bool = True
    """Of the guard: whether a text is blocked that it should have scanned and has not. If not, the audit record says
    that it was not scanned, and the text passes. The other stages do not fail.
    """
    deadline_s: Annotated[float, Meta(gt=0, le=60)] = 2.0
    """Of the guard: time for one text, in seconds. Longer has clients wait for a guard that hangs; shorter takes a slow
    guard for a dead one.
    """


_ALWAYS = StagePolicy()
_GUARD = StagePolicy(runs=Runs.IN_DOUBT)


PersonalKind = Literal["iban", "card", "ssn", "email", "secret", "phone", "ip"]
"""The kinds of personal data (api/safety/scans/personal_data.py)."""


class OnPersonalData(StrEnum):
    ALLOW = "allow"
    MASK = "mask"
    BLOCK = "block"


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    thresholds: dict[Category, Threshold] = {}
    """By category; `default_threshold` for the others."""
    default_threshold: Threshold = Threshold.ONLY_HIGH
    stages: dict[SafetyStage, StagePolicy] = {}
    """How each stage runs. A guard that is missing here runs in doubt; the other stages always run."""
    personal_data_in: dict[PersonalKind, OnPersonalData] = {}
    """By kind of personal data, in what clients send; kinds that are missing are allowed."""
    personal_data_out: dict[PersonalKind, OnPersonalData] = {}
    """The same in answers."""
    disclaimers: list[str] = []
    """Topics (`topics/` of the folder) whose disclaimer an answer ends with that is about them."""
    is_strict: bool = False
    """Whether no engine works on a prompt before its verdict. If not, prefill may start, and nothing is released."""
    is_live: bool = False
    """Whether answers leave before the guard has judged them: a late violation ends the stream, and what has left
    stays. The other stages hold back in any case.
    """
    allowed: list[str] = []
    """Terms that no list finds."""
    shadow: str = ""
    """The name of a policy that is tried out beside this one. What its thresholds would block is recorded, and nothing
    is done about it.
    """
    audits_all: bool = False
    """Whether texts that pass are recorded, too. If not, the record has what was blocked, cut, masked or not scanned.
    """
    needs_audit: bool = False
    """Whether requests are refused while the record cannot be written. If not, it is written later."""
    keeps_text: bool = False
    """Whether the record has the text of what was blocked or cut, sealed with the key of the tenant."""

    def __post_init__(self) -> None:
        """Raises ValueError for what a stage cannot do."""
        for stage, policy in self.stages.items():
            if stage is SafetyStage.GUARD:
                continue
            if msgspec.structs.replace(policy, runs=Runs.ALWAYS) != _ALWAYS:
                raise ValueError(f"stages.{stage}: only the guard has fails_closed and deadline_s")
            if policy.runs is Runs.IN_DOUBT and stage is not SafetyStage.CLASSIFIER:
                raise ValueError(f"stages.{stage}: it runs always or never")
        if self.disclaimers and self.stage(SafetyStage.LISTS).runs is Runs.NEVER:
            raise ValueError("disclaimers: the stage lists finds the topics, and it never runs")

    @property
    def version(self) -> str:
        """A hash of the content."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]

    def stage(self, stage: SafetyStage) -> StagePolicy:
        return self.stages.get(stage, _GUARD if stage is SafetyStage.GUARD else _ALWAYS)

    def threshold(self, category: Category) -> Threshold:
        own = self.thresholds.get(category, self.default_threshold)
        return own.tightened(NEVER_OFF.get(category, Threshold.OFF))

    def blocked(self, scores: Mapping[Category, float]) -> list[Category]:
        """The categories that block a text with these scores."""
        return [category for category, score in scores.items() if self.threshold(category).blocks(score)]

    def is_in_doubt(self, scores: Mapping[Category, float]) -> bool:
        """Whether a later stage may decide otherwise: a score is neither negligible nor blocked, and it matters."""
        return any(
            level_of(score) is not Level.NEGLIGIBLE
            and self.threshold(category) is not Threshold.OFF
            and not self.threshold(category).blocks(score)
            for category, score in scores.items()
        )

    def tightened(self, asked: Mapping[Category, Threshold]) -> "Policy":
        """The policy of a request that asks for these thresholds."""
        thresholds = {
            category: self.threshold(category).tightened(asked.get(category, Threshold.OFF)) for category in Category
        }
        return msgspec.structs.replace(self, thresholds=thresholds)
