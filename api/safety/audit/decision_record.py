"""What goes on record of one request: a safety event for its input, and one for each sequence of its answer."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from api.safety.audit.event import Direction, SafetyAction, SafetyEvent, evidence_of
from api.safety.judge import PolicyJudge
from api.safety.policy import Policy, Runs, SafetyStage
from api.safety.policy_folder import PolicyInForce
from api.safety.stages import GuardNotes, Stages
from api.safety.verdict import StageVerdict, highest
from api.state.postgres.stores.items import new_id
from cluster.errors import StateUnavailable
from cluster.metrics.safety import SAFETY_DECISIONS

WITHHELD = frozenset({SafetyAction.BLOCKED, SafetyAction.CUT, SafetyAction.FAILED_CLOSED})
"""The actions whose texts may be kept. What passes with masks is not kept without them."""
RECORD_PATIENCE_S = 5.0
"""How long a request waits for its record, if the policy demands it, in seconds. Longer has clients wait in an outage;
shorter refuses requests during short ones.
"""


class Noted(Protocol):
    """An event that is going to be stored."""

    async def is_durable(self) -> bool:
        """Wait until it is. False if it never will be, because its tenant was erased."""
        ...


class AuditPort(Protocol):
    """Where events are kept until they are stored (api/safety/audit/audit_writer.py)."""

    def is_full(self, tenant: str) -> bool: ...

    def note(self, event: SafetyEvent) -> Noted | None:
        """None if there is no room for it."""
        ...


class JudgedTexts(NamedTuple):
    """What was found in texts that are judged together."""

    judges: Sequence[PolicyJudge]
    notes: GuardNotes
    sha256: bytes
    """Of the whole text."""
    text: str | None
    """What is kept of the text, if it may be."""
    error: str = ""
    """Why no stage has scanned it."""

    @property
    def passing_action(self) -> SafetyAction:
        """What is done about the texts if nothing blocks them."""
        if self.notes.error:
            return SafetyAction.NOT_SCANNED
        if any(judge.masked for judge in self.judges):
            return SafetyAction.MASKED
        return SafetyAction.WOULD_BLOCK if any(judge.would_block for judge in self.judges) else SafetyAction.PASSED


class DecisionRecord:
    def __init__(self, audit: AuditPort, stages: Stages, tenant: str, request_id: str) -> None:
        self._audit = audit
        self._stages = stages
        self._tenant = tenant
        self._request_id = request_id

    def check(self, policy: Policy) -> None:
        """Raise StateUnavailable if the policy demands a record that cannot be kept now."""
        if policy.needs_audit and self._audit.is_full(self._tenant):
            raise _unrecorded()

    async def keep(
        self, direction: Direction, action: SafetyAction, in_force: PolicyInForce, found: JudgedTexts
    ) -> str:
        """Put on record what was done about texts. Returns the id of the event. Raises StateUnavailable if the policy
        demands a record that cannot be kept.
        """
        verdicts = verdicts_of(self._stages, in_force.policy, found)
        if action is SafetyAction.PASSED and not verdicts:
            action = SafetyAction.NOT_SCANNED  # the stages that the policy has had no reason to look
        SAFETY_DECISIONS.labels(direction, action).inc()
        event, policy = new_id("sfe"), in_force.policy
        if action is SafetyAction.PASSED and not policy.audits_all:
            return event
        categories = found.notes.blocked.union(*(judge.blocked | judge.would_block for judge in found.judges))
        keeps = policy.keeps_text and action in WITHHELD
        noted = self._audit.note(
            SafetyEvent(
                id=event,
                tenant=self._tenant,
                request_id=self._request_id,
                at=time.time(),
                direction=direction,
                action=action,
                policy_version=in_force.version,
                categories=sorted(categories),
                verdicts=verdicts,
                text_sha256=found.sha256,
                evidence=evidence_of(found.text) if keeps and found.text is not None else None,
            )
        )
        if policy.needs_audit:
            await _stored(noted)
        return event


def verdicts_of(stages: Stages, policy: Policy, found: JudgedTexts) -> list[StageVerdict]:
    """Of each stage that has run."""
    notes, versions = found.notes, dict[SafetyStage, str]()
    versions[SafetyStage.LISTS] = versions[SafetyStage.PERSONAL_DATA] = stages.rules_version
    if stages.classifier is not None:
        versions[SafetyStage.CLASSIFIER] = stages.classifier.version
    verdicts = [
        StageVerdict(stage, version, highest(judge.scores.get(stage, {}) for judge in found.judges), found.error)
        for stage, version in versions.items()
        if policy.stage(stage).runs is not Runs.NEVER
    ]
    if stages.guard is not None and (notes.was_asked or policy.stage(SafetyStage.GUARD).runs is Runs.ALWAYS):
        verdicts.append(StageVerdict(SafetyStage.GUARD, stages.guard.version, notes.scores, notes.error or found.error))
    return verdicts


async def _stored(noted: Noted | None) -> None:
    """Raises StateUnavailable."""
    if noted is None:
        raise _unrecorded()
    try:
        async with asyncio.timeout(RECORD_PATIENCE_S):
            is_stored = await noted.is_durable()
    except TimeoutError:
        is_stored = False
    if not is_stored:
        raise _unrecorded()


def _unrecorded() -> StateUnavailable:
    return StateUnavailable("the record of safety decisions cannot be kept now", RECORD_PATIENCE_S)
