"""The events of responses as PostgreSQL holds them: appended while they are told, read by whoever resumes. They are
short (api/wire/responses/short_events.py), a line each.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from psycopg.rows import DictRow

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import EVERY_TENANT, Database, Transaction, fetch_all, fetch_one
from api.state.postgres.queries import queries
from api.wire.responses.short_events import Line

READ_AT_ONCE, READ_BYTES_AT_ONCE = 256, 1 << 20
"""Batches of events, and their bytes, but for a single batch."""
BATCH_BYTES = 500_000
"""Of a batch, but for a single event. Larger ones are fewer rows; smaller ones keep the event loop and PostgreSQL less
long at a time.
"""

Body = dict[str, Any]
"""A response object, as the wire has it."""

_SQL = queries("events.sql")


class StoredEvents(NamedTuple):
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
    def of(cls, key: TenantKey, response: str, status: str, first_number: int, lines: list[Line]) -> "StoredEvents":
        sealed = key.seal(b"\n".join(lines), _place(response, first_number))
        last_number = first_number + len(lines) - 1
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

    async def append(self, batches: list[StoredEvents]) -> dict[str, bool]:
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

    async def read(self, tenant: str, response: str, after: int) -> list[Line]:
        """Events after this one; not all of them, where there are many."""
        async with self._database.transaction(tenant) as transaction:
            values = {"after": after, "limit": READ_AT_ONCE, "max_bytes": READ_BYTES_AT_ONCE}
            rows = await fetch_all(transaction, _SQL["since"], tenant=tenant, id=response, **values)
            return await _lines(transaction, self._keys, tenant, response, rows, after)

    async def created(self, tenant: str, response: str) -> Body | None:
        """The response as it was created, without which its events cannot be told. None where there is none."""
        async with self._database.transaction(tenant) as transaction:
            row = await fetch_one(transaction, _SQL["created"], tenant=tenant, id=response)
            if row is None:
                return None
            key = await self._keys.of_version(transaction, tenant, row["key_version"])
            return created_in(key, row)

    async def opened(self, tenant: str, response: str, first_number: int, sealed: bytes, version: int) -> list[Line]:
        """The events of a batch that came another way."""
        key = self._keys.remembered(tenant, version)
        if key is None:
            async with self._database.transaction(tenant) as transaction:
                key = await self._keys.of_version(transaction, tenant, version)
        return key.unseal(sealed, _place(response, first_number)).split(b"\n")


async def events_of(transaction: Transaction, keys: TenantKeys, tenant: str, response: str) -> list[Line]:
    """All of them."""
    values = {"after": -1, "limit": None, "max_bytes": None}
    rows = await fetch_all(transaction, _SQL["since"], tenant=tenant, id=response, **values)
    return await _lines(transaction, keys, tenant, response, rows, -1)


async def add_events(
    transaction: Transaction, key: TenantKey, response: str, first_number: int, lines: list[Line]
) -> None:
    """At the end of a response."""
    for batch in batches_of(key, response, first_number, lines):
        values = {
            "tenant": key.tenant,
            "id": response,
            "first": batch.first_number,
            "last": batch.last_number,
            "events": batch.sealed,
            "key_version": key.version,
        }
        await transaction.execute(_SQL["add"], values)


def batches_of(key: TenantKey, response: str, first_number: int, lines: list[Line]) -> Iterator[StoredEvents]:
    """In pieces that are not too large."""
    piece: list[Line] = []
    num_bytes = 0
    for line in lines:
        if piece and num_bytes + len(line) > BATCH_BYTES:
            yield StoredEvents.of(key, response, "", first_number, piece)
            first_number, piece, num_bytes = first_number + len(piece), [], 0
        piece.append(line)
        num_bytes += len(line)
    if piece:
        yield StoredEvents.of(key, response, "", first_number, piece)


def created_in(key: TenantKey, row: DictRow) -> Body:
    """The response as it was created; of one that an older Baton has ended, as it was then. Without output."""
    body: Body = msgspec.json.decode(key.unseal(row["body"], f"responses/{row['id']}/body"))
    return body


async def _lines(
    transaction: Transaction, keys: TenantKeys, tenant: str, response: str, rows: list[DictRow], after: int
) -> list[Line]:
    """After this event."""
    by_version = await keys.of_rows(transaction, tenant, rows)
    lines: list[Line] = []
    for row in rows:
        told = by_version[row["key_version"]].unseal(row["events"], _place(response, row["first_number"])).split(b"\n")
        lines += told[max(0, after + 1 - row["first_number"]) :]
    return lines


def _place(response: str, first_number: int) -> str:
    return f"response_events/{response}/{first_number}/events"
