"""The events of responses in PostgreSQL: appended while a response is generated, and read when a client resumes its
stream. Each event is a short line (api/wire/responses/short_events.py).
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.database import EVERY_TENANT, Row
from api.state.postgres.queries import queries
from api.state.postgres.tenant_transaction import TenantDatabase, TenantTransaction
from api.wire.responses.short_events import Line

READ_AT_ONCE, READ_BYTES_AT_ONCE = 256, 1 << 20
"""The most batches that one read returns, and the most bytes of them unless a single batch is larger. Fewer makes more
round trips; more takes more memory for each client that resumes.
"""
BATCH_BYTES = 500_000
"""The most bytes of a batch, unless a single event is larger. Larger batches make fewer rows; smaller batches occupy
the event loop and PostgreSQL for less time at once.
"""

Body = dict[str, Any]
"""A response, as the API shows it."""

_SQL = queries("events.sql")


class StoredEvents(NamedTuple):
    """Consecutive events of one response."""

    tenant: str
    response: str
    status: str
    """The status of the response after these events."""
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
    """How far a response is."""

    status: str
    last_number: int
    """The number of the last stored event; -1 if none is stored."""
    has_events: bool
    """False if the retention has deleted the events."""
    over_for_s: float
    """Seconds since the end of the response; 0 while it runs."""


class ResponseEvents:
    def __init__(self, database: TenantDatabase) -> None:
        self._database = database

    async def append(self, batches: list[StoredEvents]) -> dict[str, bool]:
        """Write batches of many responses in one transaction. A batch is written only if the event before it is stored
        and the response still runs. Returns the responses whose batch was written, each with whether a client has
        cancelled it.
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
            rows = await transaction.fetch_all(_SQL["append"], **values)
        return {row["id"]: row["is_cancelled"] for row in rows}

    async def renew(self, responses: list[tuple[str, str]], claim: timedelta) -> dict[str, bool]:
        """Renew the generation claims of these responses, each given as tenant and id. Returns the responses that still
        run, each with whether a client has cancelled it.
        """
        values = {
            "tenants": [tenant for tenant, _ in responses],
            "ids": [response for _, response in responses],
            "claim": claim,
        }
        async with self._database.transaction(EVERY_TENANT) as transaction:
            rows = await transaction.fetch_all(_SQL["renew"], **values)
        return {row["id"]: row["is_cancelled"] for row in rows}

    async def standing(self, tenant: str, response: str) -> Standing | None:
        """None if there is no such response."""
        async with self._database.transaction(tenant) as transaction:
            row = await transaction.fetch_one(_SQL["standing"], id=response)
            return Standing(**row) if row else None

    async def read(self, tenant: str, response: str, after: int) -> list[Line]:
        """The stored events after event `after`, up to the bounds of one read."""
        async with self._database.transaction(tenant) as transaction:
            values = {"after": after, "limit": READ_AT_ONCE, "max_bytes": READ_BYTES_AT_ONCE}
            rows = await transaction.fetch_all(_SQL["since"], id=response, **values)
            return await _lines(transaction, response, rows, after)

    async def created(self, tenant: str, response: str) -> Body | None:
        """The response as it was created, which is needed to expand its short events. None if there is no such
        response.
        """
        async with self._database.transaction(tenant) as transaction:
            row = await transaction.fetch_one(_SQL["created"], id=response)
            if row is None:
                return None
            return created_in(await transaction.key(row["key_version"]), row)

    async def opened(self, tenant: str, response: str, first_number: int, sealed: bytes, version: int) -> list[Line]:
        """The events of a sealed batch, which may come from a live tail instead of the table."""
        key = self._database.remembered_key(tenant, version)
        if key is None:
            async with self._database.transaction(tenant) as transaction:
                key = await transaction.key(version)
        return key.unseal(sealed, _place(response, first_number)).split(b"\n")


async def events_of(transaction: TenantTransaction, response: str) -> list[Line]:
    """All stored events of a response."""
    rows = await transaction.fetch_all(_SQL["since"], id=response, after=-1, limit=None, max_bytes=None)
    return await _lines(transaction, response, rows, -1)


async def add_events(
    transaction: TenantTransaction, key: TenantKey, response: str, first_number: int, lines: list[Line]
) -> None:
    """Append the last events of a response."""
    for batch in batches_of(key, response, first_number, lines):
        values = {
            "id": response,
            "first": batch.first_number,
            "last": batch.last_number,
            "events": batch.sealed,
            "key_version": key.version,
        }
        await transaction.execute(_SQL["add"], **values)


def batches_of(key: TenantKey, response: str, first_number: int, lines: list[Line]) -> Iterator[StoredEvents]:
    """The events in batches of at most BATCH_BYTES."""
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


def created_in(key: TenantKey, row: Row) -> Body:
    """The response as it was created, without output. Older versions of Baton stored its end instead."""
    body: Body = msgspec.json.decode(key.unseal(row["body"], f"responses/{row['id']}/body"))
    return body


async def _lines(transaction: TenantTransaction, response: str, rows: list[Row], after: int) -> list[Line]:
    """The events of these rows after event `after`."""
    by_version = await transaction.keys_of(rows)
    lines: list[Line] = []
    for row in rows:
        batch = by_version[row["key_version"]].unseal(row["events"], _place(response, row["first_number"]))
        lines += batch.split(b"\n")[max(0, after + 1 - row["first_number"]) :]
    return lines


def _place(response: str, first_number: int) -> str:
    return f"response_events/{response}/{first_number}/events"
