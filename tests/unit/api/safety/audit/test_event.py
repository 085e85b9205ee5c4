"""What an event of the audit log may claim, and that it can be stored."""

import hashlib
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.audit.event import (
    MAX_ERROR,
    MAX_EVIDENCE_BYTES,
    MAX_LISTED,
    MAX_NAME,
    SafetyAction,
    SafetyEvent,
    evidence_of,
    fingerprint,
)
from api.safety.verdict import Category, StageVerdict
from tests.unit.safety_events import a_safety_event

SCANNED = StageVerdict("lists", "1", {Category.HATE: 0.1})
FAILED = StageVerdict("guard", "1", error="timed out")


@pytest.mark.parametrize("verdicts", [[], [FAILED], [SCANNED, FAILED]])
def test_text_that_was_not_scanned_has_not_passed(verdicts: list[StageVerdict]) -> None:
    with pytest.raises(ValueError, match="has not passed that was not scanned"):
        a_safety_event(action=SafetyAction.PASSED, verdicts=verdicts)


@pytest.mark.parametrize("action", set(SafetyAction) - {SafetyAction.PASSED})
def test_other_actions_may_be_taken_without_a_scan(action: SafetyAction) -> None:
    assert a_safety_event(action=action, verdicts=[SCANNED, FAILED]).action is action


def test_text_that_every_stage_has_scanned_has_passed() -> None:
    assert a_safety_event(action=SafetyAction.PASSED).verdicts == [SCANNED]


def test_event_that_is_read_again_is_checked_again() -> None:
    event = a_safety_event(text_sha256=fingerprint("x"), evidence=b"x", categories=[Category.HATE])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=SafetyEvent) == event
    claim = msgspec.msgpack.encode(msgspec.structs.asdict(event) | {"action": "passed", "verdicts": []})
    with pytest.raises(ValueError, match="not scanned"):
        msgspec.msgpack.decode(claim, type=SafetyEvent)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"tenant": "x" * (MAX_NAME + 1)},
        {"request_id": "a\0b"},
        {"request_id": "a\nb"},
        {"policy_version": "\ud800"},
        {"categories": [""]},
        {"categories": ["hate"] * (MAX_LISTED + 1)},
        {"verdicts": [SCANNED] * (MAX_LISTED + 1)},
        {"verdicts": [StageVerdict("lists\0", "1")]},
        {"verdicts": [StageVerdict("lists", "")]},
        {"verdicts": [StageVerdict("lists", "1", {Category.HATE: math.nan})]},
        {"verdicts": [StageVerdict("lists", "1", {Category.HATE: 1.1})]},
        {"at": math.nan},
        {"at": 0.0},
        {"at": math.inf},
        {"text_sha256": b"short"},
        {"evidence": bytes(MAX_EVIDENCE_BYTES + 1)},
    ],
)
def test_what_cannot_be_stored_is_refused_at_once(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        a_safety_event(**fields)


@given(st.text(st.characters(), max_size=2 * MAX_ERROR))
def test_whatever_a_guard_has_answered_can_be_stored(error: str) -> None:
    (kept,) = a_safety_event(verdicts=[StageVerdict("guard", "1", error=error or "x")]).verdicts
    assert not kept.is_scanned and len(kept.error) <= MAX_ERROR
    assert "\0" not in msgspec.json.decode(msgspec.json.encode(kept.error))


def test_plain_error_is_kept_as_it_is() -> None:
    assert a_safety_event(verdicts=[FAILED]).verdicts == [FAILED]


@given(st.text(st.characters(), max_size=20), st.integers(0, 8))
def test_evidence_is_the_beginning_of_the_text(text: str, extra: int) -> None:
    long = text + "ä" * (MAX_EVIDENCE_BYTES // 2 - 4 + extra)
    kept = evidence_of(long)
    assert len(kept) <= MAX_EVIDENCE_BYTES
    assert long.encode("utf-8", "replace").decode().startswith(kept.decode())
    assert a_safety_event(evidence=kept).evidence == kept


def test_short_evidence_is_the_whole_text() -> None:
    assert evidence_of("größer 😀").decode() == "größer 😀"


def test_fingerprint_is_of_the_whole_text() -> None:
    assert fingerprint("ä") == hashlib.sha256("ä".encode()).digest()
    assert fingerprint("x" * MAX_EVIDENCE_BYTES) != fingerprint("x" * (MAX_EVIDENCE_BYTES + 1))
    assert len(fingerprint("\ud800")) == 32
