"""The limits on the head of a request, and the framing of requests."""

import asyncio
import json

import pytest

from tests.hostile.http.wire import GET, listening, post

CHUNKED = (
    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)
START = b"GET /echo HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (START + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (START + b"X: " + b"a" * 600_000, 431, "headers_too_large"),
        (START + b"a" * 600_000, 431, "headers_too_large"),
        (START + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 1000) for n in range(50)) + b"\r\n", 431, "headers_too_large"),
        (START + b"".join(b"X-%d: a\r\n" % n for n in range(101)) + b"\r\n", 431, "headers_too_large"),
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "url_too_long"),
        (b"GET /" + b"a" * 600_000, 414, "url_too_long"),
    ],
)
async def test_head_of_any_size_is_refused_as_soon_as_it_is_too_large(request_: bytes, status: int, code: str) -> None:
    async with listening() as wire:
        connection = await wire.connection()
        await connection.send(request_)
        answer = await connection.answer()
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["x-request-id"].startswith("req_")
        assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
        assert await connection.is_closed()
        assert wire.app.num_asked == 0


OF_MESSAGES = b"POST %s HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-1\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (OF_MESSAGES % b"/v1/messages" + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (OF_MESSAGES % b"http://localhost/v1/messages?beta=true" + b"Content-Length : 0\r\n\r\n", 400),
        (OF_MESSAGES % b"/v1/messages/count_tokens" + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (OF_MESSAGES % b"/v1/messages" + b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415),
    ],
)
async def test_refused_head_or_body_of_a_message_has_anthropic_s_error(request_: bytes, status: int) -> None:
    async with listening() as wire:
        answer = await wire.asked(request_)
        body = json.loads(answer.body)
        assert (answer.status, body["type"], body["error"]["type"]) == (status, "error", "invalid_request_error")
        assert answer.headers["request-id"] == answer.headers["x-request-id"] == body["request_id"] == "mine-1"
        assert wire.app.num_asked == 0


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\nHost localhost\n\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_request_that_could_be_read_in_two_ways_is_refused(request_: bytes) -> None:
    async with listening() as wire:
        answer = await wire.asked(request_)
        assert answer.status == 400
        assert answer.code
        assert answer.headers["x-request-id"]
        assert wire.app.num_asked == 0


async def test_body_in_pieces_is_bounded_as_it_comes() -> None:
    async with listening(max_body_bytes=1000) as wire:
        piece = b"64\r\n" + b"x" * 100 + b"\r\n"
        assert (await wire.asked(CHUNKED + 5 * piece + b"0\r\n\r\n")).status == 200
        answer = await wire.asked(CHUNKED + 11 * piece)
        assert (answer.status, answer.code) == (413, "request_too_large")


@pytest.mark.parametrize("endless", [CHUNKED + b"1;" + b"a" * 600_000, CHUNKED + b"0\r\nX: " + b"a" * 600_000])
async def test_extension_of_a_piece_and_trailers_are_as_short_as_headers(endless: bytes) -> None:
    async with listening() as wire:
        connection = await wire.connection()
        answer = await connection.asked(endless)
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert await connection.is_closed()
        assert wire.app.num_asked == 0


async def test_trailer_is_no_header() -> None:
    async with listening() as wire:
        answer = await wire.asked(CHUNKED + b"2\r\n{}\r\n0\r\nHost: evil.example\r\nOrigin: null\r\n\r\n")
        assert answer.status == 200


async def test_requests_may_follow_each_other_without_waiting() -> None:
    async with listening() as wire:
        connection = await wire.connection()
        await connection.send(post(b"{}") + GET + post(b"{}"))
        methods = [json.loads((await connection.answer()).body)["method"] for _ in range(3)]
        assert methods == ["POST", "GET", "POST"]


async def test_too_many_that_follow_each_other_end_the_connection() -> None:
    async with listening() as wire:
        wire.app.may_answer.clear()
        connection = await wire.connection()
        await connection.send(GET * 1000)
        assert await connection.is_closed()
        await asyncio.wait_for(wire.app.left.wait(), 5)  # the work for a client that has left ends
        assert wire.app.num_asked == 1


async def test_sixteen_may_wait_behind_the_one_that_is_answered_and_no_more() -> None:
    async with listening() as wire:
        wire.app.may_answer.clear()
        patient, greedy = await wire.connection(), await wire.connection()
        await patient.send(GET * 17)
        await greedy.send(GET * 18)
        assert await greedy.is_closed()
        wire.app.may_answer.set()
        assert [(await patient.answer()).status for _ in range(17)] == [200] * 17


async def test_host_in_the_url_is_the_one_that_counts() -> None:
    async with listening() as wire:
        asked = b"GET http://%s/echo HTTP/1.1\r\nHost: %s\r\n\r\n"
        assert (await wire.asked(asked % (b"localhost", b"evil.example"))).status == 200
        assert (await wire.asked(asked % (b"evil.example", b"localhost"))).code == "host_not_allowed"


async def test_client_that_has_said_all_still_gets_its_answer() -> None:
    async with listening() as wire:
        connection = await wire.connection()
        await connection.send(GET)
        connection.writer.write_eof()
        assert (await connection.answer()).status == 200


async def test_answer_to_head_has_no_body() -> None:
    async with listening() as wire:
        connection = await wire.connection()
        await connection.send(GET.replace(b"GET", b"HEAD"))
        assert (await connection.answer(has_body=False)).status == 200
        assert json.loads((await connection.asked(GET)).body)["method"] == "GET"


@pytest.mark.parametrize("protocol", [b"websocket", b"WebSocket", b"h2c, websocket"])
async def test_websockets_are_refused(protocol: bytes) -> None:
    async with listening() as wire:
        answer = await wire.asked(START + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n")
        assert (answer.status, answer.code) == (400, "websocket_not_supported")


async def test_other_upgrades_are_left_aside() -> None:
    async with listening() as wire:
        answer = await wire.asked(START + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n")
        assert answer.status == 200
