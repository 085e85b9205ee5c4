"""The loop of one WebSocket: each message that comes is answered, whenever it comes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest

from api.edge.byte_budget import ByteBudget, Share
from api.edge.request_body import Body
from api.edge.socket import Arrived, Socket, SocketEnding
from api.responses.socket_loop import MAX_WAITING, SocketLoop


class FakeSocket:
    """A client that sends what `arrive` is given. It leaves at None."""

    def __init__(self) -> None:
        self.arriving: asyncio.Queue[Arrived] = asyncio.Queue()
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed_with: int | None = None
        self.before_idle: Callable[[], None] = lambda: None

    def arrive(self, text: bytes) -> None:
        body = Body(Share(ByteBudget(1000)))
        body.put(text)
        self.arriving.put_nowait(body)

    async def next(self) -> Arrived:
        return await self.arriving.get()

    async def send(self, message: bytes) -> None:
        self.sent.put_nowait(message)

    async def tell_idle(self) -> None:
        self.before_idle()
        for _ in range(5):  # the loop may take what has come
            await asyncio.sleep(0)

    async def close(self, code: int, reason: str) -> None:
        self.closed_with = code
        self.arriving.put_nowait(None)


@pytest.fixture
def socket() -> FakeSocket:
    return FakeSocket()


async def echo(body: Body) -> AsyncGenerator[bytes, None]:
    yield body.take()


def started(socket: FakeSocket, answer: Any = echo) -> asyncio.Task[None]:
    return asyncio.create_task(SocketLoop(cast(Socket, socket), answer).run())


async def test_message_that_comes_while_the_socket_becomes_idle_is_answered(socket: FakeSocket) -> None:
    others = [b"second", b"third"]
    socket.before_idle = lambda: socket.arrive(others.pop(0)) if others else None
    socket.arrive(b"first")
    running = started(socket)
    assert [await socket.sent.get() for _ in range(3)] == [b"first", b"second", b"third"]
    socket.arriving.put_nowait(None)
    await running


async def test_ending_that_comes_while_the_socket_becomes_idle_closes_it(socket: FakeSocket) -> None:
    socket.before_idle = lambda: socket.arriving.put_nowait(SocketEnding.LEAVING)
    socket.arrive(b"first")
    await started(socket)
    assert socket.closed_with == SocketEnding.LEAVING.code


class SlowAnswers:
    """Answers that wait until they may go on."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, body: Body) -> AsyncGenerator[bytes, None]:
        self.has_begun.set()
        await self.may_end.wait()
        yield body.take()


async def test_ending_waits_for_the_answer_and_drops_what_waits(socket: FakeSocket) -> None:
    answers = SlowAnswers()
    running = started(socket, answers)
    socket.arrive(b"first")
    await answers.has_begun.wait()
    socket.arrive(b"second")
    socket.arriving.put_nowait(SocketEnding.LEAVING)
    for _ in range(5):  # the loop takes both
        await asyncio.sleep(0)
    answers.may_end.set()
    await running
    assert socket.closed_with == SocketEnding.LEAVING.code
    assert socket.sent.get_nowait() == b"first" and socket.sent.empty()


async def test_messages_beyond_the_most_that_wait_are_refused(socket: FakeSocket) -> None:
    answers = SlowAnswers()
    running = started(socket, answers)
    socket.arrive(b"first")
    await answers.has_begun.wait()
    for _ in range(MAX_WAITING + 1):
        socket.arrive(b"x")
    assert b"wait already" in await socket.sent.get() and socket.sent.empty()
    socket.arriving.put_nowait(None)
    await running
