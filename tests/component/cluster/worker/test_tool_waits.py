"""A worker tells its engine which conversations wait for tools."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.errors import ServingError
from cluster.messages.retention import ToolWait
from cluster.rpc.connection import Connection, Service
from cluster.rpc.listener import Listener, connect
from cluster.rpc.protocol import ANSWER, AWAIT_TOOLS
from cluster.worker.tool_waits import MOST_WAITING, ToolWaits


class Engine:
    def __init__(self) -> None:
        self.heard: list[ToolWait] = []
        self.error: ServingError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self._changed = asyncio.Condition()

    async def await_tools(self, wait: ToolWait) -> None:
        await self.gate.wait()
        async with self._changed:
            self.heard.append(wait)
            self._changed.notify_all()
        if self.error is not None:
            raise self.error

    async def has_heard(self, number: int) -> None:
        async with asyncio.timeout(5), self._changed:
            await self._changed.wait_for(lambda: len(self.heard) >= number)


async def nothing(_: None) -> None:
    """The answer to ANSWER."""


def wait(number: int) -> ToolWait:
    return ToolWait(number.to_bytes(8, "big"), 3)


@pytest.fixture
async def worker() -> AsyncIterator[tuple[Engine, Connection]]:
    engine, service = Engine(), Service()
    ToolWaits(engine, service)
    service.on_call(ANSWER, nothing)
    listener = await Listener.start("127.0.0.1", service)
    connection = await connect(listener.address, Service())
    yield engine, connection
    connection.close()
    await listener.close()


async def test_engine_is_told_in_order(worker: tuple[Engine, Connection]) -> None:
    engine, connection = worker
    for number in range(3):
        connection.post(AWAIT_TOOLS, wait(number))
    await engine.has_heard(3)
    assert engine.heard == [wait(0), wait(1), wait(2)]


async def test_engine_that_cannot_be_told_fails_nothing(worker: tuple[Engine, Connection]) -> None:
    engine, connection = worker
    engine.error = ServingError("dead")
    connection.post(AWAIT_TOOLS, wait(0))
    await engine.has_heard(1)
    engine.error = None
    connection.post(AWAIT_TOOLS, wait(1))
    await engine.has_heard(2)


async def test_flood_is_bounded_and_the_latest_are_told(worker: tuple[Engine, Connection]) -> None:
    engine, connection = worker
    engine.gate.clear()
    for number in range(3 * MOST_WAITING):
        connection.post(AWAIT_TOOLS, wait(number))
    await connection.call(ANSWER, None)  # in order
    engine.gate.set()
    await engine.has_heard(MOST_WAITING)
    assert len(engine.heard) <= MOST_WAITING + 1
    assert engine.heard[-1] == wait(3 * MOST_WAITING - 1)


@pytest.mark.parametrize("wrong", [{"mark": b"short", "tools": 0}, {"mark": b"8 bytes.", "tools": 10**6}])
async def test_message_that_is_not_one_is_not_read(worker: tuple[Engine, Connection], wrong: dict[str, Any]) -> None:
    engine, connection = worker
    connection.post(AWAIT_TOOLS, ToolWait(**wrong))
    connection.post(AWAIT_TOOLS, wait(1))
    await engine.has_heard(1)
    assert engine.heard == [wait(1)]
