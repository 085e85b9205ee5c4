"""Clients that send slowly, or nothing."""

import asyncio

import pytest

from tests.edge.http.wire import GET, listening, post

HEADS = [b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: 1", post(b"")[:-2]]


async def test_senders_that_do_not_finish_take_nobodys_turn():
    async with listening(max_ongoing_requests=3) as wire:
        for _ in range(6):
            await (await wire.connection()).send(post(b"x", length=10))
        assert (await wire.asked(post(b"{}"))).status == 200
        assert wire.app.num_asked == 1


async def test_body_that_hardly_comes_is_ended(monkeypatch):
    monkeypatch.setattr("api.server.bodies.GRACE_S", 0.1)
    async with listening() as wire:
        connection = await wire.connection()
        await connection.send(post(b"x", length=10))
        answer = await connection.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")


async def test_body_at_the_least_rate_may_take_longer_than_the_grace(monkeypatch):
    grace_s, pieces = 0.2, 10
    monkeypatch.setattr("api.server.bodies.GRACE_S", grace_s)
    async with listening(min_body_bytes_per_s=1000) as wire:
        connection = await wire.connection()
        await connection.send(post(b"", length=1000 * pieces))
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        for _ in range(pieces):
            await connection.send(b"x" * 1000)
            await asyncio.sleep(grace_s / 4)  # the slow client itself
        assert (await connection.answer()).status == 200
        assert loop.time() - began_at > 2 * grace_s


@pytest.mark.parametrize("begun", HEADS)
async def test_headers_that_do_not_end_are_ended(begun):
    async with listening(header_timeout_s=0.2) as wire:
        connection = await wire.connection()
        await connection.send(begun)
        answer = await connection.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert await connection.is_closed()


async def test_headers_that_come_byte_by_byte_have_no_more_time():
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


async def test_connection_without_a_request_is_closed():
    async with listening(idle_timeout_s=0.2) as wire:
        assert await (await wire.connection()).is_closed()
        used = await wire.connection()
        assert (await used.asked(GET)).status == 200
        assert await used.is_closed()
        assert wire.num_open == 0


async def test_request_that_is_being_answered_may_take_longer_than_all_of_these():
    async with listening(idle_timeout_s=0.1, header_timeout_s=0.1) as wire:
        wire.app.may_answer.clear()
        connection = await wire.connection()
        await connection.send(post(b"{}"))
        assert await (await wire.connection()).is_closed()  # one that has no request, meanwhile
        wire.app.may_answer.set()
        assert (await connection.answer()).status == 200


async def test_client_that_waits_with_its_body_is_told_to_send_it():
    async with listening() as wire:
        connection = await wire.connection()
        await connection.send(post(b"", b"Expect: 100-continue", length=2))
        assert (await connection.answer()).status == 100
        assert (await connection.asked(b"{}")).status == 200


async def test_client_that_waits_with_its_body_is_refused_without_it():
    async with listening(max_body_bytes=100) as wire:
        connection = await wire.connection()
        await connection.send(post(b"", b"Expect: 100-continue", length=101))
        answer = await connection.answer()
        assert (answer.status, answer.code) == (413, "request_too_large")
        assert await connection.is_closed()
