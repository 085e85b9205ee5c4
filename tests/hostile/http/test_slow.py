"""Clients that send slowly or not at all."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from tests.expected import of_kind
from tests.hostile.http.wire import GET, listening, post

HEADS = [b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: 1", post(b"")[:-2]]


async def test_senders_that_do_not_finish_take_nobodys_turn() -> None:
    async with listening(max_ongoing_requests=3) as wire:
        for _ in range(6):
            await (await wire.connection()).send(post(b"x", length=10))
        assert (await wire.asked(post(b"{}"))).status == 200
        assert wire.app.num_asked == 1


async def test_strangers_do_not_take_the_memory_of_bodies() -> None:
    """On a path that asks for no credential, a body is short."""
    async with listening(max_body_bytes=300_000, max_bodies_bytes=500_000) as wire:
        for path in (b"/healthz", b"/nothing"):
            for _ in range(2):
                asked = post(b"x" * 290_000, length=300_000).replace(b"/v1/echo", path)
                assert (await wire.asked(asked)).code == "request_too_large"
            chunked = post(b"", b"Transfer-Encoding: chunked").replace(b"/v1/echo", path)
            chunked = chunked.replace(b"Content-Length: 0\r\n", b"") + b"%x\r\n" % 290_000 + b"x" * 290_000
            assert (await wire.asked(chunked)).code == "request_too_large"
        assert (await wire.asked(post(b"x" * 290_000))).status == 200


async def test_body_that_hardly_comes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(body_grace_s=0.1) as wire:
        connection = await wire.connection()
        await connection.send(post(b"x", length=10))
        answer = await connection.answer()
        assert (answer.status, answer.code) == (408, "body_timeout")


async def test_body_that_comes_byte_by_byte_has_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that arrives does not start the time again."""
    async with listening(body_grace_s=0.2, min_body_bytes_per_s=1000) as wire:
        connection = await wire.connection()
        await connection.send(post(b"", length=10_000))

        async def drip() -> None:
            for _ in range(200):
                await connection.send(b"x")
                await asyncio.sleep(0.05)  # the delay of the slow client

        dripping = asyncio.create_task(drip())
        answer = await connection.answer()
        dripping.cancel()
        await asyncio.wait([dripping])
        assert (answer.status, answer.code) == (408, "body_timeout")


async def test_body_at_the_least_rate_may_take_longer_than_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    grace_s, pieces = 0.2, 10
    async with listening(body_grace_s=grace_s, min_body_bytes_per_s=1000) as wire:
        connection = await wire.connection()
        await connection.send(post(b"", length=1000 * pieces))
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        for _ in range(pieces):
            await connection.send(b"x" * 1000)
            await asyncio.sleep(grace_s / 4)  # the delay of the slow client
        assert (await connection.answer()).status == 200
        assert loop.time() - began_at > 2 * grace_s


async def test_bytes_of_a_body_earn_the_time_that_they_may_take_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the bytes that may be sent in a second may take half a second, and the grace in addition."""
    async with listening(body_grace_s=0.1, min_body_bytes_per_s=100_000) as wire:
        connection = await wire.connection()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await connection.send(post(b"x" * 50_000, length=100_000))
        assert (await connection.answer()).code == "body_timeout"
        assert 0.6 <= loop.time() - began_at < 3.0


@pytest.mark.parametrize("begun", HEADS)
async def test_headers_that_do_not_end_are_ended(begun: bytes) -> None:
    async with listening(header_timeout_s=0.2) as wire:
        connection = await wire.connection()
        await connection.send(begun)
        answer = await connection.answer()
        assert (answer.status, answer.code) == (408, "header_timeout")
        assert await connection.is_closed()


async def test_headers_that_come_byte_by_byte_have_no_more_time() -> None:
    async with listening(header_timeout_s=0.3) as wire:
        connection = await wire.connection()

        async def drip() -> None:
            for byte in GET * 100:
                await connection.send(bytes([byte]))
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert (await connection.answer()).status == 408
        dripping.cancel()
        await asyncio.wait([dripping])


async def test_connection_without_a_request_is_closed() -> None:
    async with listening(idle_timeout_s=0.2) as wire:
        assert await (await wire.connection()).is_closed()
        used = await wire.connection()
        assert (await used.asked(GET)).status == 200
        assert await used.is_closed()
        assert wire.num_open == 0


async def test_request_that_is_being_answered_may_take_longer_than_all_of_these() -> None:
    async with listening(idle_timeout_s=0.1, header_timeout_s=0.1) as wire:
        wire.app.may_answer.clear()
        connection = await wire.connection()
        await connection.send(post(b"{}"))
        assert await (await wire.connection()).is_closed()  # a connection without a request is closed meanwhile
        wire.app.may_answer.set()
        assert (await connection.answer()).status == 200


async def test_client_that_waits_with_its_body_is_told_to_send_it() -> None:
    async with listening() as wire:
        connection = await wire.connection()
        await connection.send(post(b"", b"Expect: 100-continue", length=2))
        assert (await connection.answer()).status == 100
        assert (await connection.asked(b"{}")).status == 200


async def test_client_that_waits_with_its_body_is_refused_without_it() -> None:
    async with listening(max_body_bytes=100) as wire:
        connection = await wire.connection()
        await connection.send(post(b"", b"Expect: 100-continue", length=101))
        answer = await connection.answer()
        assert (answer.status, answer.code) == (413, "request_too_large")
        assert await connection.is_closed()


class Talker:
    """Answers with more bytes than the buffers on the way to its client hold, and notices when the answer ends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            for _ in range(64):
                await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})
        finally:
            self.ended.set()


async def test_client_that_reads_nothing_of_its_answer_keeps_nothing() -> None:
    talker = Talker()
    async with listening(talker, unread_timeout_s=0.2, max_ongoing_requests=1) as wire:
        connection = await wire.connection()
        of_kind(asyncio.Transport, connection.writer.transport).pause_reading()
        await connection.send(post(b"{}"))
        await asyncio.wait_for(talker.ended.wait(), 5)
        async with asyncio.timeout(5):
            while wire.num_open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_client_that_reads_slowly_gets_its_answer() -> None:
    async with listening(Talker(), unread_timeout_s=0.3) as wire:
        connection = await wire.connection()
        await connection.send(post(b"{}"))
        num_read, began_at = 0, asyncio.get_running_loop().time()
        while num_read < 64 << 20:
            num_read += len(await asyncio.wait_for(connection._reader.read(4 << 20), 5))
            if num_read < 16 << 20:
                await asyncio.sleep(0.02)  # the delay of the slow client
        assert asyncio.get_running_loop().time() - began_at > 0.3
