"""The audit log of safety decisions, in PostgreSQL: the events of each tenant are a hash chain
(api/state/postgres/audit_chain.py).
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from api.state.postgres.audit_chain import BrokenRow, ChainCheck, ChainedRow, Link, evidence_mac
from api.state.postgres.audit_rows import (
    Auditable,
    Chain,
    StoredAudit,
    append_in,
    keys_of_evidence,
    move_ends,
    opened,
    stored_audit,
)
from api.state.postgres.database import EVERY_TENANT
from api.state.postgres.queries import queries
from api.state.postgres.stores.items import ROW_BYTES
from api.state.postgres.tenant_transaction import TenantDatabase
from api.wire.pages import Page, Part
from cluster.errors import InvalidRequest, NotFound, ServingError, StateUnavailable

READ_AT_ONCE = 200
"""Rows that a walk along a chain reads in one transaction. More is faster; fewer takes less memory for evidence."""
DELETED_AT_ONCE = 500
"""Rows that the retention deletes in one transaction. More is faster; fewer keeps new events waiting for less time."""

_SQL = queries("audit.sql")


class AuditFilter(NamedTuple):
    """Which events a list has. None selects all."""

    action: str | None = None
    direction: str | None = None
    category: str | None = None
    request_id: str | None = None


ALL = AuditFilter()


class Verified(NamedTuple):
    """What a walk along a chain has found."""

    num_rows: int
    """Sound events from the beginning on."""
    head: Link | None
    """None if the row of the chain cannot be used."""
    broken: BrokenRow | None


class AuditStore:
    def __init__(self, database: TenantDatabase) -> None:
        self._database = database

    async def append(self, events: Sequence[Auditable]) -> set[str]:
        """Append the events that are not stored yet, in their order, in one transaction for each tenant. Evidence that
        the tenant's quota has no room for is left out. Returns the ids of the events that are stored now: all but those
        from before an erasure of their tenant.

        Raises:
            Conflict: a tenant is being erased.
            ServingError: the chain of a tenant was changed by hand.
            StateUnavailable: PostgreSQL is away.
        """
        by_tenant: dict[str, list[Auditable]] = defaultdict(list)
        for event in events:
            by_tenant[event.tenant].append(event)
        stored: set[str] = set()
        for tenant, theirs in by_tenant.items():
            adds = sum(len(event.evidence) + ROW_BYTES for event in theirs if event.evidence is not None)
            try:
                async with self._database.transaction(tenant, adds=adds) as transaction:
                    stored |= await append_in(transaction, theirs)
            except InvalidRequest as error:
                if error.code != "storage_quota_exceeded":
                    raise
                async with self._database.transaction(tenant) as transaction:
                    stored |= await append_in(transaction, theirs, keeps_evidence=False)
        return stored

    async def find(self, tenant: str, page: Page, only: AuditFilter = ALL) -> Part[StoredAudit]:
        """Events, without evidence. Raises NotFound."""
        query = _SQL["list_newest_first" if page.newest_first else "list_oldest_first"]
        async with self._database.transaction(tenant) as transaction:
            rows = await transaction.fetch_all(query, **only._asdict(), after=page.after, limit=page.limit + 1)
            if not rows and page.after and await transaction.fetch_one(_SQL["get"], id=page.after) is None:
                raise no_event(page.after)
        return Part([stored_audit(row, {}) for row in rows[: page.limit]], len(rows) > page.limit)

    async def get(self, tenant: str, event: str) -> StoredAudit:
        """Raises NotFound."""
        async with self._database.transaction(tenant) as transaction:
            row = await transaction.fetch_one(_SQL["get"], id=event)
            if row is None:
                raise no_event(event)
            return stored_audit(row, await keys_of_evidence(transaction, [row]))

    async def rows(self, tenant: str) -> AsyncIterator[StoredAudit]:
        """All events in their order, each page of them in a transaction of its own."""
        after: int | None = None
        while True:
            async with self._database.transaction(tenant) as transaction:
                rows = await transaction.fetch_all(_SQL["rows"], after=after, limit=READ_AT_ONCE)
                keys = await keys_of_evidence(transaction, rows)
            for row in rows:
                yield stored_audit(row, keys)
            if len(rows) < READ_AT_ONCE:
                return
            after = rows[-1]["sequence"]

    async def tenants(self) -> list[str]:
        """The tenants that have events, or have had some."""
        async with self._database.transaction(EVERY_TENANT) as transaction:
            return [row["id"] for row in await transaction.fetch_all(_SQL["tenants"])]

    async def verify(self, tenant: str, noted: Link | None = None) -> Verified:
        """Walk along the chain of a tenant. `noted`: a head that was noted earlier, which the chain must still have.

        Raises:
            Conflict: the tenant is being erased.
            NotFound: the tenant has no events.
            StateUnavailable: PostgreSQL is away.
        """
        if tenant not in await self.tenants():
            raise no_events(tenant)
        try:
            while True:
                chain = await self._chain(tenant)
                found = await self._walked(chain, noted)
                if found.broken is None or (await self._chain(tenant)).ends.anchor == chain.ends.anchor:
                    return found  # otherwise the retention has deleted events during the walk
        except (InvalidRequest, StateUnavailable):
            raise
        except ServingError as error:
            return Verified(0, None, BrokenRow(0, str(error)))

    async def delete_before(self, tenant: str, at: float) -> int:
        """Delete the oldest events of the chain up to the first one that is not older than `at`, a Unix time. Appeals
        against them are deleted with them. Returns the number of deleted events.

        Raises:
            Conflict: the tenant is being erased.
            ServingError: the events or their chain were changed by hand.
            StateUnavailable: PostgreSQL is away.
        """
        number = 0
        while True:
            async with self._database.transaction(tenant) as transaction:
                row = await transaction.fetch_one(_SQL["lock_chain"])
                if row is None:
                    return number
                chain = await opened(transaction, row)
                oldest = await transaction.fetch_all(
                    _SQL["list_oldest_first"], **ALL._asdict(), after=None, limit=DELETED_AT_ONCE
                )
                walk = ChainCheck(chain.key, chain.ends)
                for one in oldest:
                    if one["at"] >= at:
                        break
                    found = stored_audit(one, {})
                    if broken := walk.take(ChainedRow(found.row, found.hash)):
                        raise ServingError(f"safety event {broken.sequence} of tenant '{tenant}': {broken.why}")
                deleted = walk.link.sequence - chain.ends.anchor.sequence
                if deleted:
                    await move_ends(transaction, chain.key, chain.ends._replace(anchor=walk.link))
                    await transaction.execute(_SQL["delete_oldest"], sequence=walk.link.sequence)
            number += deleted
            if deleted < DELETED_AT_ONCE:
                return number

    async def _chain(self, tenant: str) -> Chain:
        """Raises ServingError."""
        async with self._database.transaction(tenant) as transaction:
            row = await transaction.fetch_one(_SQL["chain"])
            if row is None:
                raise ServingError(f"the row of the chain of safety events of tenant '{tenant}' is missing")
            return await opened(transaction, row)

    async def _walked(self, chain: Chain, noted: Link | None) -> Verified:
        tenant = chain.ends.tenant
        walk = ChainCheck(chain.key, chain.ends)
        number, broken = 0, None
        async for stored in self.rows(tenant):
            broken = walk.take(ChainedRow(stored.row, stored.hash)) or _evidence_broken(chain.key, stored)
            if broken is None and noted is not None and noted.sequence == walk.link.sequence and noted != walk.link:
                broken = _not_noted(noted)
            if broken is not None:
                break
            number += 1
        newest = await self._chain(tenant)
        broken = broken or walk.finish(newest.ends.head) or _compared(noted, walk.link, newest.ends.anchor)
        return Verified(number, walk.link, broken)


def no_event(event: str) -> NotFound:
    return NotFound(f"no safety event with id '{event}'", "event_id", "safety_event_not_found")


def no_events(tenant: str) -> NotFound:
    return NotFound(f"tenant '{tenant}' has no safety events", None, "tenant_not_found")


def _compared(noted: Link | None, head: Link, anchor: Link) -> BrokenRow | None:
    """What the ends of the chain tell of a head that was noted."""
    if noted is None or anchor.sequence < noted.sequence <= head.sequence:
        return None
    if noted.sequence > head.sequence:
        return BrokenRow(noted.sequence, "it was noted, and is missing")
    if noted.sequence < anchor.sequence:
        return BrokenRow(noted.sequence, "it was noted, and the retention has deleted it: note a newer head")
    return None if noted == anchor else _not_noted(noted)


def _not_noted(noted: Link) -> BrokenRow:
    return BrokenRow(noted.sequence, "it is not the event that was noted")


def _evidence_broken(key: bytes, stored: StoredAudit) -> BrokenRow | None:
    row = stored.row
    try:
        evidence = stored.evidence()
    except ServingError as error:
        return BrokenRow(row.sequence, str(error))
    due = None if evidence is None else evidence_mac(key, evidence)
    return None if row.evidence_mac == due else BrokenRow(row.sequence, "its evidence was changed")
