"""Writes the ledger of usage in batches. Whatever is written twice is there once."""

from collections.abc import Sequence

import msgspec
from psycopg import DataError, IntegrityError

from api.state.postgres.database import EVERY_TENANT, Database, Row, Transaction, fetch_one
from api.state.postgres.ledger.entries import Opening, UsageRow
from api.state.postgres.queries import queries
from cluster.errors import InvalidRequest

SQL = queries("ledger.sql")


class LedgerStore:
    def __init__(self, database: Database, *, publishes: bool = False) -> None:
        """`publishes`: each new row is also put into the outbox (api/metering/publisher.py)."""
        self._database = database
        self._publishes = publishes

    async def identity(self) -> str:
        """The id of the ledger in this database, as text. Raises StateUnavailable."""
        async with self._database.transaction(EVERY_TENANT) as transaction:
            return str((await _one(transaction, "identity"))["id"])

    async def write(self, openings: Sequence[Opening], closed: Sequence[str], rows: Sequence[UsageRow]) -> int:
        """Write openings, end the entries `closed`, and append their rows, in one transaction. Returns the number of
        rows that were not there.

        Raises:
            InvalidRequest: PostgreSQL can never store one of these values.
            StateUnavailable: PostgreSQL is away, or too slow.
        """
        try:
            return await self._write(openings, closed, rows)
        except (DataError, IntegrityError) as error:
            raise InvalidRequest(f"the ledger refuses a row: {error}", None, "invalid_value") from error

    async def _write(self, openings: Sequence[Opening], closed: Sequence[str], rows: Sequence[UsageRow]) -> int:
        async with self._database.transaction(EVERY_TENANT) as transaction:
            if openings:
                await transaction.execute(SQL["open"], {"openings": _json(openings)})
            if closed:
                await transaction.execute(SQL["close"], {"ids": list(closed)})
            if not rows:
                return 0
            added = await _one(transaction, "append", rows=_json(rows), publishes=self._publishes)
            return int(added["added"])

    async def beat(self, ingress: str, waiting: int) -> None:
        """Say that an ingress process lives, and how many of its records wait. Raises StateUnavailable."""
        async with self._database.transaction(EVERY_TENANT) as transaction:
            await transaction.execute(SQL["beat"], {"ingress": ingress, "waiting": waiting})

    async def leave(self, ingress: str) -> None:
        """Forget an ingress process: what it has opened and not closed counts as lost. Raises StateUnavailable."""
        async with self._database.transaction(EVERY_TENANT) as transaction:
            await transaction.execute(SQL["leave"], {"ingress": ingress})


def _json(values: Sequence[Opening] | Sequence[UsageRow]) -> str:
    return msgspec.json.encode(values).decode()


async def _one(transaction: Transaction, name: str, **values: object) -> Row:
    row = await fetch_one(transaction, SQL[name], **values)
    assert row is not None
    return row
