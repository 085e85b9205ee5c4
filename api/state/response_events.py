"""The events of responses as PostgreSQL holds them: appended while they are told, read by whoever resumes."""

from datetime import timedelta
from typing import NamedTuple

from api.state.database import EVERY_TENANT, Database, Transaction, fetch_all, fetch_one
from api.state.queries import queries
from api.state.sealing import TenantKey, TenantKeys

READ_AT_ONCE = 256
"""Batches of events."""

_SQL = queries("events.sql")


class Batch(NamedTuple):
    """Events of one response, next to each other."""

    tenant: str
    response: str
    status: str
    """Of the response, after them."""
    first_number: int
    last_number: int
    sealed: bytes
    key_version: int

    @classmethod
    def of(cls, key: TenantKey, response: str, status: str, first_number: int, events: list[bytes]) -> "Batch":
        """`events`: as JSON."""
        sealed = key.seal(b"\n".join(events), _place(response, first_number))
        last_number = first_number + len(events) - 1
        return cls(key.tenant, response, status, first_number, last_number, sealed, key.version)


class Standing(NamedTuple):
    status: str
    last_number: int
    """Of the last event that is written; -1 for none."""
    has_events: bool
    """False when they are not kept any more."""
    over_for_s: float
    """0 while it runs."""


class ResponseEvents:
    def __init__(self, database: Database, keys: TenantKeys) -> None:
        self._database = database
        self._keys = keys

    async def append(self, batches: list[Batch]) -> dict[str, bool]:
        """All at once. Returns those that were written: the events before them were, and the response still runs; and
        whether somebody wants the response to end.
        """
        values = {
            "tenants": [batch.tenant for batch in batches],
            "ids": [batch.response for batch in batches],
            "statuses": [batch.status for batch in batches],
            "firsts": [batch.first_number for batch in batches],
            "lasts": [batch.last_number for batch in batches],
            "events": [batch.sealed for batch in batches],
            "key_versions": [batch.key_version for batch in batches],
        }
        async with self._database.transaction(EVERY_TENANT) as transaction:
            rows = await (await transaction.execute(_SQL["append"], values)).fetchall()
        return {row["id"]: row["is_cancelled"] for row in rows}

    async def renew(self, responses: list[tuple[str, str]], lease: timedelta) -> dict[str, bool]:
        """By tenant and id. Returns those that still run, and whether somebody wants them to end."""
        values = {
            "tenants": [tenant for tenant, _ in responses],
            "ids": [response for _, response in responses],
            "lease": lease,
        }
        async with self._database.transaction(EVERY_TENANT) as transaction:
            rows = await (await transaction.execute(_SQL["renew"], values)).fetchall()
        return {row["id"]: row["is_cancelled"] for row in rows}

    async def standing(self, tenant: str, response: str) -> Standing | None:
        """None where there is no such response."""
        async with self._database.transaction(tenant) as transaction:
            row = await fetch_one(transaction, _SQL["standing"], tenant=tenant, id=response)
            return Standing(**row) if row else None

    async def read(self, tenant: str, response: str, after: int) -> list[bytes]:
        """Events after this one, as JSON; not all of them, where there are many."""
        async with self._database.transaction(tenant) as transaction:
            return await events_of(transaction, self._keys, tenant, response, after, READ_AT_ONCE)

    async def opened(self, tenant: str, response: str, first_number: int, sealed: bytes, version: int) -> list[bytes]:
        """The events of a batch that came another way, as JSON."""
        key = self._keys.remembered(tenant, version)
        if key is None:
            async with self._database.transaction(tenant) as transaction:
                key = await self._keys.of_version(transaction, tenant, version)
        return key.unseal(sealed, _place(response, first_number)).split(b"\n")


async def events_of(
    transaction: Transaction, keys: TenantKeys, tenant: str, response: str, after: int = -1, batches: int | None = None
) -> list[bytes]:
    """As JSON; of so many batches at most."""
    rows = await fetch_all(transaction, _SQL["since"], tenant=tenant, id=response, after=after, limit=batches)
    versions = {row["key_version"] for row in rows}
    by_version = {version: await keys.of_version(transaction, tenant, version) for version in versions}
    events: list[bytes] = []
    for row in rows:
        told = by_version[row["key_version"]].unseal(row["events"], _place(response, row["first_number"])).split(b"\n")
        events += told[max(0, after + 1 - row["first_number"]) :]
    return events


async def add_events(
    transaction: Transaction, key: TenantKey, response: str, first_number: int, events: list[bytes]
) -> None:
    """At the end of a response."""
    if events:
        batch = Batch.of(key, response, "", first_number, events)
        values = {
            "tenant": key.tenant,
            "id": response,
            "first": first_number,
            "last": batch.last_number,
            "events": batch.sealed,
            "key_version": key.version,
        }
        await transaction.execute(_SQL["add"], values)


def _place(response: str, first_number: int) -> str:
    return f"response_events/{response}/{first_number}/events"
