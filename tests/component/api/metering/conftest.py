from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from api.state.postgres.database import Database
from api.state.postgres.ledger.ledger_jobs import LedgerJobs
from api.state.postgres.ledger.ledger_store import LedgerStore
from tests.component.api.metering.ledger_rows import Ask
from tests.component.emptied import emptied


@pytest.fixture
async def database(postgres: str) -> AsyncIterator[Database]:
    """Migrated, and empty."""
    emptied(postgres)
    opened = Database(postgres, 4)
    await opened.open()
    await opened.migrate()
    yield opened
    await opened.close()


@pytest.fixture
def store(database: Database) -> LedgerStore:
    return LedgerStore(database)


@pytest.fixture
def jobs(database: Database) -> LedgerJobs:
    return LedgerJobs(database)


@pytest.fixture
def ask(database: Database, postgres: str) -> Ask:
    """The answer of a query that sees all tenants."""

    def asked(query: Any, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("SELECT set_config('app.tenant_id', '*', false)")
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    return asked
