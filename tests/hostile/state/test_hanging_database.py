"""PostgreSQL that hangs, as when a network drops packets: whoever waits for it is told so, and soon."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest
from psycopg import OperationalError

from api.state.lifecycle import ChatState
from api.state.postgres.database import Database
from cluster.errors import StateUnavailable
from tests.hostile.state.stored import database_of

TIMEOUT_S = 0.5
SOON_S = 3.0
"""After the timeout: a busy machine. A cancelled statement alone would wait 10 s."""


@contextmanager
def hanging(backend: int) -> Iterator[None]:
    """The server, and all that serve its connections."""
    server = psutil.Process(backend).parent()
    assert server is not None
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)


async def backend_of(state: ChatState) -> int:
    async with database_of(state).transaction("alice") as transaction:
        return int(transaction.info.backend_pid)


async def test_transaction_that_is_not_answered_ends_in_its_time(state: ChatState) -> None:
    with hanging(await backend_of(state)):
        began = time.monotonic()
        with pytest.raises(StateUnavailable):
            async with database_of(state).transaction("alice", TIMEOUT_S) as transaction:
                await transaction.execute("SELECT 1")
        assert time.monotonic() - began < TIMEOUT_S + SOON_S


@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
async def test_transaction_whose_end_is_not_answered_ends_in_its_time(state: ChatState, fails: bool) -> None:
    backend = await backend_of(state)
    began = 0.0
    with pytest.raises(StateUnavailable), ExitStack() as hangs:
        async with database_of(state).transaction("alice", TIMEOUT_S) as transaction:
            await transaction.execute("SELECT 1")
            hangs.enter_context(hanging(backend))
            began = time.monotonic()
            if fails:
                raise OperationalError("of the work itself")
    assert time.monotonic() - began < TIMEOUT_S + SOON_S
    async with database_of(state).transaction("alice") as transaction:
        await transaction.execute("SELECT 1")


async def test_probe_that_is_not_answered_ends_in_its_time_and_leaves_no_broken_connection(
    state: ChatState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.state.postgres.database.PROBE_TIMEOUT_S", TIMEOUT_S)
    database = database_of(state)
    await asyncio.gather(*(_slept(database) for _ in range(3)))  # so many connections are idle
    with hanging(await backend_of(state)):
        began = time.monotonic()
        with pytest.raises(StateUnavailable):
            await database.probe()
        await database.drop_broken()
        assert time.monotonic() - began < TIMEOUT_S + SOON_S
    async with database.transaction("alice") as transaction:
        await transaction.execute("SELECT 1")
    await database.probe()


async def _slept(database: Database) -> None:
    async with database.transaction("alice") as transaction:
        await transaction.execute("SELECT pg_sleep(0.2)")


async def test_connection_that_was_cut_is_replaced(state: ChatState) -> None:
    with hanging(await backend_of(state)), pytest.raises(StateUnavailable):
        async with database_of(state).transaction("alice", TIMEOUT_S):
            pass
    async with database_of(state).transaction("alice") as transaction:
        assert (await (await transaction.execute("SELECT 1 AS one")).fetchone()) == {"one": 1}


async def test_statement_that_is_slow_and_not_late_is_not_cut(state: ChatState) -> None:
    async with database_of(state).transaction("alice") as transaction:
        await transaction.execute("SELECT pg_sleep(0.3)")
        await transaction.execute("SELECT 1")
