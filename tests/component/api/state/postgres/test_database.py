"""The first connections to PostgreSQL, on a machine that is busy while the service starts."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from psycopg import AsyncConnection

from api.state.lifecycle import ChatState
from api.state.postgres import database as module
from api.state.postgres.database import EVERY_TENANT, Database, fetch_one
from cluster.config.state import StateConfig
from cluster.errors import StateUnavailable
from tests.component.emptied import emptied

AWAY = "postgresql://baton@127.0.0.1:9/baton"
"""Nothing listens there."""
SLOW_S = 0.3


@pytest.fixture
def slow_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection takes longer to make than a request waits for one."""
    connect = AsyncConnection.connect

    async def slowly(*arguments: Any, **options: Any) -> AsyncConnection[Any]:
        await asyncio.sleep(SLOW_S)
        return await connect(*arguments, **options)

    monkeypatch.setattr(AsyncConnection, "connect", slowly)
    monkeypatch.setattr(module, "CONNECTION_TIMEOUT_S", SLOW_S / 3)


@pytest.mark.usefixtures("slow_connections")
async def test_start_on_a_slow_machine_warns_of_nothing(
    postgres: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emptied(postgres)  # another test may have written it with another master key
    state = ChatState(StateConfig(database_url=postgres, data_dir=str(tmp_path)), serves=True)
    try:
        await state.look()
        assert (await state.known_accounts.changes(None)).version >= 0
    finally:
        await state.close()
    assert "PostgreSQL" not in caplog.text


async def test_start_without_a_server_tells_why_and_waits_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = ChatState(StateConfig(database_url=AWAY, data_dir=str(tmp_path)))
    began = time.monotonic()
    try:
        with pytest.raises(StateUnavailable):
            await state.look()
        assert time.monotonic() - began < module.CONNECTION_TIMEOUT_S
    finally:
        await state.close()
    assert "refused" in caplog.text.partition("PostgreSQL is away or busy: ")[2]


@pytest.mark.usefixtures("slow_connections")
async def test_server_that_gives_no_connection_is_waited_for_no_longer_than_the_first_one(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_CONNECTION_TIMEOUT_S", SLOW_S / 3)
    database = Database(postgres, 1)
    await database.open()
    try:
        with pytest.raises(StateUnavailable):
            await database.connected()
        monkeypatch.setattr(module, "FIRST_CONNECTION_TIMEOUT_S", 60.0)
        await database.connected()
        async with database.transaction(EVERY_TENANT) as transaction:
            assert await fetch_one(transaction, "SELECT 1 AS one") == {"one": 1}
    finally:
        await database.close()
