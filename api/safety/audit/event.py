"""One decision of the safety stage, as the audit log gets it. Pure.

An event never claims more than was done: a text has passed only if at least one stage has scanned it, and no stage that
had to scan it has failed to. What is noted can be stored: names are printable and bounded, and so is the evidence.
"""

import hashlib
import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from api.safety.verdict import StageVerdict

MAX_NAME = 256
"""Characters of an id, of a version or of the name of a stage or category. Lower values refuse longer names; higher
values store more with each event.
"""
MAX_LISTED = 64
"""Categories of an event, and its verdicts. Lower values refuse events of policies with many stages; higher values
store more with each event.
"""
MAX_ERROR = 500
"""Characters that are kept of the error of a verdict: it may quote what another server has answered. Fewer explain
less; more store more with each event.
"""
MAX_EVIDENCE_BYTES = 64 << 10
"""Bytes of the text that an event keeps. Fewer show a reviewer less of a long text; more take more memory while
PostgreSQL is away, and more disk.
"""


class Direction(StrEnum):
    """What was judged."""

    INPUT = "input"
    OUTPUT = "output"
    APPEAL = "appeal"
    """An earlier event, by a person."""


class SafetyAction(StrEnum):
    """What was done."""

    PASSED = "passed"
    BLOCKED = "blocked"
    CUT = "cut"
    """An answer has ended before what was found."""
    MASKED = "masked"
    NOT_SCANNED = "not_scanned"
    """The text has passed although a stage has not scanned it."""
    FAILED_CLOSED = "failed_closed"
    """The text was refused because a stage has not scanned it."""
    WOULD_BLOCK = "would_block"
    """A policy that is tried out would have blocked the text. It has passed."""


class SafetyEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Raises ValueError if it contradicts itself, or cannot be stored."""

    id: str
    """`sfe_…`, made by `new_id("sfe")` of api/state/postgres/stores/items.py."""
    tenant: str
    request_id: str
    at: float
    """Unix time, in seconds."""
    direction: Direction
    action: SafetyAction
    policy_version: str
    categories: Sequence[str] = ()
    """For which the action was taken."""
    verdicts: Sequence[StageVerdict] = ()
    """Errors are cut to MAX_ERROR characters."""
    text_sha256: bytes | None = None
    """Of the whole text: `fingerprint`. Only a keyed hash of it is stored. None if there is no text."""
    evidence: bytes | None = None
    """The text, as far as the policy keeps it: `evidence_of`. It is stored sealed."""

    def __post_init__(self) -> None:
        for name in (self.id, self.tenant, self.request_id, self.policy_version, *self.categories):
            _check_name(name)
        if not (math.isfinite(self.at) and self.at > 0):
            raise ValueError(f"{self.at} is no time")
        if len(self.categories) > MAX_LISTED or len(self.verdicts) > MAX_LISTED:
            raise ValueError(f"an event has at most {MAX_LISTED} categories and verdicts")
        if self.text_sha256 is not None and len(self.text_sha256) != hashlib.sha256().digest_size:
            raise ValueError("the hash of the text is no SHA-256")
        if self.evidence is not None and len(self.evidence) > MAX_EVIDENCE_BYTES:
            raise ValueError(f"evidence has at most {MAX_EVIDENCE_BYTES} bytes, not {len(self.evidence)}")
        if self.action is SafetyAction.PASSED and not (
            self.verdicts and all(verdict.is_scanned for verdict in self.verdicts)
        ):
            raise ValueError("a text has not passed that was not scanned")
        msgspec.structs.force_setattr(self, "verdicts", [_checked(verdict) for verdict in self.verdicts])


def fingerprint(text: str) -> bytes:
    """The SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def evidence_of(text: str) -> bytes:
    """The first MAX_EVIDENCE_BYTES of a text, up to the end of a character."""
    start = text[:MAX_EVIDENCE_BYTES].encode("utf-8", "replace")[:MAX_EVIDENCE_BYTES]
    return start.decode("utf-8", "ignore").encode()


def _check_name(name: str) -> None:
    if not (0 < len(name) <= MAX_NAME and name.isprintable()):
        raise ValueError(f"a name in an event has 1 to {MAX_NAME} printable characters: {name[:MAX_NAME]!r}")


def _checked(verdict: StageVerdict) -> StageVerdict:
    for name in (verdict.stage, verdict.version, *verdict.scores):
        _check_name(name)
    if not all(0.0 <= score <= 1.0 for score in verdict.scores.values()):
        raise ValueError(f"scores of stage {verdict.stage} are not all from 0 to 1")
    if len(verdict.error) <= MAX_ERROR and verdict.error.isprintable():
        return verdict
    error = "".join(character if character.isprintable() else "?" for character in verdict.error[:MAX_ERROR])
    return msgspec.structs.replace(verdict, error=error)
