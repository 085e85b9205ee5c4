"""Appeals against safety decisions, in PostgreSQL. A decision on an appeal is an event of the audit log itself."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.audit_rows import append_in
from api.state.postgres.database import Row
from api.state.postgres.queries import queries
from api.state.postgres.stores.audit import no_event
from api.state.postgres.stores.items import ROW_BYTES, new_id
from api.state.postgres.tenant_transaction import TenantDatabase, TenantTransaction
from api.wire.pages import Page, Part
from cluster.errors import Conflict, InvalidRequest, NotFound

MAX_REASON = 4_000
"""Characters of the reason for an appeal, and of the note to its decision. Fewer refuse longer texts; more store more
for each appeal.
"""
MAX_REVIEWER = 200
"""Characters of a reviewer's name. Fewer refuse longer names; more store more for each appeal."""
APPEALABLE = frozenset({"blocked", "cut", "masked", "failed_closed"})
"""The actions that have withheld something. There is nothing to appeal against in the others."""

_SQL = queries("appeals.sql")


class AppealStatus(StrEnum):
    OPEN = "open"
    UPHELD = "upheld"
    """The decision stands."""
    OVERTURNED = "overturned"


class Appeal(NamedTuple):
    id: str
    event: str
    reason: str
    status: AppealStatus
    reviewer: str | None
    note: str | None
    review: str | None
    """What the stages found in the text when the appeal was made, as JSON (api/safety/review.py)."""
    created_at: datetime
    decided_at: datetime | None


class _Decision(NamedTuple):
    """The event of a decision on an appeal."""

    id: str
    tenant: str
    request_id: str
    at: float
    action: str
    policy_version: str
    categories: Sequence[str]
    verdicts: Sequence[Any]
    direction: str = "appeal"
    text_sha256: bytes | None = None
    evidence: bytes | None = None


class AppealStore:
    def __init__(self, database: TenantDatabase) -> None:
        self._database = database

    async def open(self, tenant: str, event: str, reason: str) -> Appeal:
        """Appeal against an event.

        Raises:
            NotFound: there is no such event.
            Conflict: an appeal against it is open.
            InvalidRequest: nothing was withheld, the reason is empty or too long, or the tenant's quota is used up.
        """
        _check_text(reason, "reason", MAX_REASON)
        adds = ROW_BYTES + len(reason.encode("utf-8", "replace"))
        async with self._database.transaction(tenant, adds=adds) as transaction:
            found = await transaction.fetch_one(_SQL["event"], id=event)
            if found is None or await transaction.fetch_one(_SQL["keep_event"], id=event) is None:
                raise no_event(event)
            if found["action"] not in APPEALABLE or found["direction"] == "appeal":
                raise InvalidRequest(
                    f"nothing was withheld by the safety event '{event}'", "event_id", "nothing_to_appeal"
                )
            appeal, key = new_id("apl"), await transaction.sealing_key()
            row = await transaction.fetch_one(
                _SQL["open"],
                id=appeal,
                event=event,
                reason=key.seal(reason.encode(), _place(appeal, "reason")),
                key_version=key.version,
            )
        if row is None:
            raise Conflict(f"an appeal against the safety event '{event}' is open", "event_id", "appeal_open")
        return _appeal(row, key)

    async def add_review(self, tenant: str, appeal: str, review: bytes) -> Appeal:
        """Keep what the stages find in the text. `review`: JSON.

        Raises:
            NotFound: there is no such appeal.
            Conflict: it is decided already.
            InvalidRequest: the tenant's quota is used up.
        """
        async with self._database.transaction(tenant, adds=len(review)) as transaction:
            await transaction.fetch_one(_SQL["lock"], id=appeal)
            before = await _found(transaction, appeal)
            key = await transaction.sealing_key()
            row = await transaction.fetch_one(
                _SQL["add_review"],
                id=appeal,
                reason=key.seal(before.reason.encode(), _place(appeal, "reason")),
                review=key.seal(review, _place(appeal, "review")),
                key_version=key.version,
            )
            if row is None:
                raise _decided(appeal)
        return _appeal(row, key)

    async def find(self, tenant: str, page: Page, status: AppealStatus | None = None) -> Part[Appeal]:
        """Raises NotFound."""
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        async with self._database.transaction(tenant) as transaction:
            rows = await transaction.fetch_all(query, status=status, after=page.after, limit=page.limit + 1)
            if not rows and page.after and await transaction.fetch_one(_SQL["get"], id=page.after) is None:
                raise no_appeal(page.after)
            by_version = await transaction.keys_of(rows)
        shown = [_appeal(row, by_version[row["key_version"]]) for row in rows[: page.limit]]
        return Part(shown, len(rows) > page.limit)

    async def get(self, tenant: str, appeal: str) -> Appeal:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            return await _found(transaction, appeal)

    async def decide(
        self,
        tenant: str,
        appeal: str,
        status: AppealStatus,
        reviewer: str,
        note: str,
        changes: Sequence[tuple[str, str]] = (),
    ) -> Appeal:
        """Decide on an open appeal: UPHELD or OVERTURNED. The decision is appended to the audit log. `changes`: what is
        changed for the tenant with it, such as ("allow", "glue soup").

        Raises:
            NotFound: there is no such appeal.
            Conflict: it is decided already.
            InvalidRequest: the status is OPEN, or a text is empty or too long.
        """
        if status is AppealStatus.OPEN:
            raise InvalidRequest("a decision is upheld or overturned", "status", "invalid_value")
        _check_text(reviewer, "reviewer", MAX_REVIEWER)
        if note:
            _check_text(note, "note", MAX_REASON)
        async with self._database.transaction(tenant) as transaction:
            await transaction.fetch_one(_SQL["lock"], id=appeal)
            before = await _found(transaction, appeal)
            event = await transaction.fetch_one(_SQL["event"], id=before.event)
            if event is None:  # the retention has deleted both meanwhile
                raise no_appeal(appeal)
            await append_in(transaction, [_decision(tenant, event, appeal, status, reviewer, changes)])
            key = await transaction.sealing_key()
            row = await transaction.fetch_one(
                _SQL["decide"],
                id=appeal,
                status=status,
                reviewer=reviewer,
                reason=key.seal(before.reason.encode(), _place(appeal, "reason")),
                note=key.seal(note.encode(), _place(appeal, "note")),
                review=None if before.review is None else key.seal(before.review.encode(), _place(appeal, "review")),
                key_version=key.version,
            )
            if row is None:
                raise _decided(appeal)
        return _appeal(row, key)


def no_appeal(appeal: str) -> NotFound:
    return NotFound(f"no appeal with id '{appeal}'", "appeal_id", "appeal_not_found")


def _decided(appeal: str) -> Conflict:
    return Conflict(f"the appeal '{appeal}' is decided already", "appeal_id", "appeal_decided")


async def _found(transaction: TenantTransaction, appeal: str) -> Appeal:
    """Raises NotFound."""
    row = await transaction.fetch_one(_SQL["get"], id=appeal)
    if row is None:
        raise no_appeal(appeal)
    return _appeal(row, await transaction.key(row["key_version"]))


def _decision(
    tenant: str, event: Row, appeal: str, status: AppealStatus, reviewer: str, changes: Sequence[tuple[str, str]]
) -> _Decision:
    """Its verdicts name the event, the appeal, the reviewer and the changes."""
    named = [("event", event["id"]), ("appeal", appeal), ("reviewer", reviewer), *changes]
    return _Decision(
        id=new_id("sfe"),
        tenant=tenant,
        request_id=event["request_id"],
        at=datetime.now(UTC).timestamp(),
        action="passed" if status is AppealStatus.OVERTURNED else event["action"],
        policy_version=event["policy_version"],
        categories=event["categories"],
        verdicts=[{"stage": stage, "version": version, "scores": {}, "error": ""} for stage, version in named],
    )


def _check_text(text: str, name: str, most: int) -> None:
    if not 0 < len(text) <= most:
        raise InvalidRequest(f"{name} must have 1 to {most:,} characters", name, "string_above_max_length")


def _appeal(row: Row, key: TenantKey) -> Appeal:
    texts = {
        name: None if row[name] is None else key.unseal(row[name], _place(row["id"], name)).decode()
        for name in ("reason", "note", "review")
    }
    return Appeal(
        row["id"],
        row["event_id"],
        texts["reason"] or "",
        AppealStatus(row["status"]),
        row["reviewer"],
        texts["note"],
        texts["review"],
        row["created_at"],
        row["decided_at"],
    )


def _place(appeal: str, column: str) -> str:
    return f"safety_appeals/{appeal}/{column}"
