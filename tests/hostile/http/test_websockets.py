"""What clients may do on a WebSocket, and what ends it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode

from api.frontend.generation import Call
from api.server.socket_protocol import MAX_CONTROL_FRAMES, MAX_FRAGMENTS, MAX_QUEUED, PARSED_BYTES
from tests.component.answering import Model, frame
from tests.component.socket_service import answer, ask, code_at_the_end, events, socket_service
from tests.hostile.http.wire import Connection
from tests.unit.chat_chunks import answer as chunks_of

UPGRADE = (
    b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
HEAD = b"GET /v1/responses HTTP/1.1\r\n" + UPGRADE


def put(connection: ClientConnection, *frames: Frame) -> None:
    """Write frames that the client's library would not send."""
    connection.transport.write(b"".join(one.serialize(mask=True) for one in frames))


async def holds(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for what nobody tells."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Flood(Model):
    """Generates without end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    async def _told(self, number: int, call: Call) -> AsyncGenerator[str, None]:
        role, *_ = chunks_of("x")
        text = chunks_of("x" * 10_000)[1]
        try:
            yield frame(role)
            while True:
                yield frame(text)
                await asyncio.sleep(0)
        finally:
            self.ended.set()


async def test_message_that_is_too_long_is_not_read() -> None:
    async with socket_service(Model(), max_body_bytes=10_000) as service:
        whole, pieces = await service.connection(), await service.connection()
        whole.transport.write(b"\x81\xff" + (1 << 40).to_bytes(8, "big") + b"mask")
        assert await code_at_the_end(whole) == 1009
        put(pieces, Frame(Opcode.TEXT, b"x" * 6000, fin=False), Frame(Opcode.CONT, b"x" * 6000, fin=False))
        assert await code_at_the_end(pieces) == 1009


async def test_fragments_without_end_are_not_collected() -> None:
    async with socket_service(Model()) as service:
        connection = await service.connection()
        put(connection, Frame(Opcode.TEXT, b"", fin=False), *[Frame(Opcode.CONT, b"", fin=False)] * MAX_FRAGMENTS)
        assert await code_at_the_end(connection) == 1008


@pytest.mark.parametrize("begun", [b"\x81\xfe\x10\x00maskx", Frame(Opcode.TEXT, b"{", fin=False).serialize(mask=True)])
async def test_message_that_never_ends_is_cut(begun: bytes) -> None:
    async with socket_service(Model(), body_grace_s=0.2) as service:
        connection = await service.connection()
        connection.transport.write(begun)
        assert await code_at_the_end(connection) == 1008


async def test_messages_that_arrive_take_from_the_memory_of_bodies() -> None:
    async with socket_service(Model(), max_bodies_bytes=200_000, max_body_bytes=200_000) as service:
        first, second = await service.connection(), await service.connection()
        part = Frame(Opcode.TEXT, b"x" * 190_000, fin=False)
        put(first, part)
        budget = service.gatekeeper.budget
        await holds(lambda: budget.num_held > 100_000)
        put(second, part)
        assert await code_at_the_end(second) == 1013
        first.transport.abort()
        await holds(lambda: not budget.num_held)
        assert (await answer(await service.connection()))["type"] == "response.completed"
        assert budget.num_held == 0


async def test_chain_that_a_short_message_follows_takes_from_the_memory_of_bodies() -> None:
    async with socket_service(Model(), max_bodies_bytes=200_000, max_body_bytes=200_000) as service:
        chained, sender, other = [await service.connection() for _ in range(3)]
        first = (await answer(chained, input="x" * 150_000))["response"]["id"]
        second = (await answer(chained, previous_response_id=first))["response"]["id"]
        put(sender, Frame(Opcode.TEXT, b"x" * 190_000, fin=False))
        await holds(lambda: service.gatekeeper.budget.num_held > 100_000)
        refused: Any = await answer(chained, previous_response_id=second)
        assert (refused["status"], refused["error"]["code"]) == (503, "engine_overloaded")
        assert "retry-after" in refused["error"]["headers"]
        assert (await answer(other))["type"] == "response.completed"  # as short, and follows nothing
        sender.transport.abort()
        await holds(lambda: not service.gatekeeper.budget.num_held)


@pytest.mark.parametrize("number", [MAX_CONTROL_FRAMES + 1, 20_000])
@pytest.mark.parametrize("kind", [Opcode.PING, Opcode.PONG])
async def test_flood_of_pings_is_cut(kind: Opcode, number: int) -> None:
    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    async with socket_service(Model()) as service:
        connection = await service.connection()
        put(connection, *[Frame(kind, b"x" * 5)] * number)
        assert await code_at_the_end(connection) == 1008
    assert faults == []


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 60])
async def test_flood_of_messages_is_cut(text: bytes) -> None:
    async with socket_service(Model()) as service:
        connection, other = await service.connection(), await service.connection()
        put(connection, *[Frame(Opcode.TEXT, text)] * 30_000)
        assert await code_at_the_end(connection) == 1008
        assert (await answer(other))["type"] == "response.completed"
        assert service.gatekeeper.budget.num_held == 0


async def test_as_many_messages_at_once_as_fit_are_answered() -> None:
    async with socket_service(Model()) as service:
        connection = await service.connection()
        put(connection, *[Frame(Opcode.TEXT, b"{}")] * MAX_QUEUED)
        told = [(await events(connection))[-1]["status"] for _ in range(MAX_QUEUED)]
        assert set(told) == {400, 429} and told.count(400) >= 16
        assert (await answer(connection))["type"] == "response.completed"


@pytest.mark.parametrize("length", [PARSED_BYTES - 8, PARSED_BYTES, 3 * PARSED_BYTES + 1])
async def test_message_that_is_parsed_in_parts_is_whole(length: int) -> None:
    model = Model()
    async with socket_service(model) as service:
        connection = await service.connection()
        for text in ("é" * length, "x" * length):
            assert (await answer(connection, input=text))["type"] == "response.completed"
            assert model.chats[-1][-1]["content"] == text


async def test_messages_during_a_response_wait_up_to_a_bound() -> None:
    model = Model()
    model.may_go_on.clear()
    async with socket_service(model) as service:
        connection = await service.connection()
        await ask(connection)
        await model.asked(1)
        for number in range(18):
            await ask(connection, stream_id=str(number))
        while (event := json.loads(await connection.recv()))["type"] != "error":
            pass
        assert (event["status"], event["error"]["headers"]) == (429, {"retry-after": "1"})
        model.may_go_on.set()
        ends: list[dict[str, Any]] = []
        while len(ends) < 18:
            ends += [event for event in await events(connection) if event["type"] in ("response.completed", "error")]
        done = [end["response"]["output"][0]["content"][0]["text"] for end in ends if "response" in end]
        assert done == [f"Answer {number}" for number in range(1, 18)] and len(ends) == 18


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (Frame(Opcode.BINARY, b"{}"), 1003),
        (Frame(Opcode.TEXT, b"\xff\xfe"), 1007),
        (Frame(Opcode.CONT, b"x"), 1002),
    ],
)
async def test_frames_that_are_no_text_end_the_connection(bad: Frame, code: int) -> None:
    async with socket_service(Model()) as service:
        connection = await service.connection()
        put(connection, bad)
        assert await code_at_the_end(connection) == code


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("[" * 100 + "]" * 100, 400, "invalid_value"),
        ('{"a":' * 100 + "1" + "}" * 100, 400, "invalid_value"),
        ("{", 400, "invalid_json"),
        ("[]", 400, "invalid_type"),
        ("{}", 400, "invalid_value"),
        ('{"type": "session.update"}', 400, "invalid_value"),
        ('{"type": "response.create", "colour": 1}', 400, "unknown_parameter"),
        ('{"type": "response.create", "input": "x"}', 400, "missing_required_parameter"),
        ('{"type": "response.create", "model": "m", "input": "x", "generate": 1.5}', 400, "invalid_type"),
        ('{"type": "response.create", "model": "m", "input": "x", "previous_response_id": [1]}', 400, "invalid_type"),
    ],
)
async def test_wrong_messages_are_refused_and_the_connection_stays(text: str, status: int, code: str) -> None:
    async with socket_service(Model()) as service:
        connection = await service.connection()
        await connection.send(text)
        (event,) = await events(connection)
        assert (event["type"], event["status"], event["error"]["code"]) == ("error", status, code)
        assert (await answer(connection))["type"] == "response.completed"


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (HEAD, 408, "header_timeout"),
        (HEAD.replace(b"Key: ", b"Kei: ") + b"\r\n", 400, "invalid_websocket_handshake"),
        (HEAD.replace(b"13", b"8") + b"\r\n", 400, "invalid_websocket_handshake"),
        (HEAD + b"Content-Length: 2\r\n\r\n{}", 400, "invalid_websocket_handshake"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400, "invalid_websocket_handshake"),
        (HEAD + b"X: " + b"a" * 9000 + b"\r\n\r\n", 400, "invalid_websocket_handshake"),
        (b"GET /v1/models HTTP/1.1\r\n" + UPGRADE + b"\r\n", 400, "websocket_not_supported"),
        (b"GET /v1/responses/ HTTP/1.1\r\n" + UPGRADE + b"\r\n", 400, "websocket_not_supported"),
        (b"POST /v1/responses HTTP/1.1\r\n" + UPGRADE + b"\r\n", 400, "websocket_not_supported"),
        (HEAD + b"Origin: https://evil.example\r\n\r\n", 403, "origin_not_allowed"),
        (HEAD + b"Host: localhost\r\n\r\n", 400, "repeated_header"),
    ],
)
async def test_wrong_upgrades_get_an_http_answer(head: bytes, status: int, code: str) -> None:
    async with socket_service(Model(), header_timeout_s=0.3) as service:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", service.port))
        got = await connection.asked(head)
        assert (got.status, got.code) == (status, code)
        assert await connection.is_closed()
        connection.writer.close()


@pytest.mark.parametrize("origin", [None, "https://chat.example.com", "http://127.0.0.1:{port}"])
async def test_pages_of_listed_origins_and_its_own_may_connect(origin: str | None) -> None:
    async with socket_service(Model(), cors_origins=["https://chat.example.com"]) as service:
        named = None if origin is None else origin.format(port=service.port)
        connection = await service.connection(origin=named)
        assert (await answer(connection))["type"] == "response.completed"
        assert connection.response is not None
        headers = connection.response.headers
        assert headers["x-request-id"].startswith("req_") and headers["x-content-type-options"] == "nosniff"


async def test_pages_of_other_origins_may_not_connect() -> None:
    async with socket_service(Model(), cors_origins=["https://chat.example.com"]) as service:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            assert await service.refusal(origin=origin) == (403, "origin_not_allowed")


async def test_unknown_host_is_refused() -> None:
    async with socket_service(Model(), allowed_hosts=["baton.example.com"]) as service:
        head = HEAD.replace(b"localhost", b"evil.example") + b"\r\n"
        connection = Connection(*await asyncio.open_connection("127.0.0.1", service.port))
        got = await connection.asked(head)
        assert (got.status, got.code) == (421, "host_not_allowed")
        connection.writer.close()


async def test_one_address_may_have_so_many_sockets() -> None:
    async with socket_service(Model(), max_connections_per_address=2) as service:
        held = [await service.connection() for _ in range(2)]
        raw = Connection(*await asyncio.open_connection("127.0.0.1", service.port))
        assert (await raw.answer()).status == 503
        assert [(await answer(one))["type"] for one in held] == ["response.completed"] * 2
        raw.writer.close()


async def test_idle_sockets_make_room_for_new_connections() -> None:
    model = Model()
    model.may_go_on.clear()
    async with socket_service(model, max_connections=8) as service:
        busy, oldest, *others = [await service.connection() for _ in range(8)]
        await ask(busy)
        await model.asked(1)
        assert (await service.get("/healthz")).status_code in (200, 503)
        assert await code_at_the_end(oldest) == 1013
        model.may_go_on.set()
        assert (await events(busy))[-1]["type"] == "response.completed"
        assert (await answer(others[-1]))["type"] == "response.completed"


async def test_client_that_does_not_read_is_disconnected_and_its_turn_ends() -> None:
    flood = Flood()
    async with socket_service(flood, unread_timeout_s=0.3) as service:
        connection = await service.connection(max_queue=1)
        await ask(connection)
        await asyncio.wait_for(flood.ended.wait(), 20)
        await holds(lambda: not service.gatekeeper.connections.open, 10)


async def test_client_that_leaves_ends_its_unstored_turn() -> None:
    model = Flood()
    async with socket_service(model) as service:
        connection = await service.connection()
        await ask(connection)
        await connection.recv()
        connection.transport.abort()
        await asyncio.wait_for(model.ended.wait(), 10)


async def test_socket_without_messages_is_closed() -> None:
    async with socket_service(Model(), sockets={"idle_timeout_s": 0.3}) as service:
        connection = await service.connection()
        assert (await answer(connection))["type"] == "response.completed"
        assert await code_at_the_end(connection) == 1000


async def test_socket_without_pongs_is_closed() -> None:
    async with socket_service(Model(), sockets={"ping_interval_s": 0.2}) as service:
        connection = await service.connection()
        connection.transport.pause_reading()
        await holds(lambda: not service.gatekeeper.connections.open)


async def test_old_socket_finishes_its_response_and_tells_why_it_ends() -> None:
    model = Model()
    model.may_go_on.clear()
    async with socket_service(model, sockets={"lifetime_s": 0.3}) as service:
        connection = await service.connection()
        await ask(connection)
        await model.asked(1)
        await asyncio.sleep(0.6)  # past the life time
        model.may_go_on.set()
        assert (await events(connection))[-1]["type"] == "response.completed"
        (ending,) = await events(connection)
        assert (ending["status"], ending["error"]["code"]) == (400, "websocket_connection_limit_reached")
        assert await code_at_the_end(connection) == 1000


async def test_what_a_connection_remembers_is_bounded() -> None:
    bounds = {"max_remembered_bytes": 2000, "max_all_remembered_bytes": 6000}
    async with socket_service(Model(), sockets=bounds) as service:
        space = service.app.state.services.chain_space
        connections = [await service.connection() for _ in range(4)]
        long = (await answer(connections[0], input="x" * 2000))["response"]["id"]
        assert space.num_held == 0
        refused: Any = await answer(connections[0], previous_response_id=long)
        assert refused["error"]["code"] in ("previous_response_not_found", "state_unavailable")
        for connection in connections:
            await answer(connection, input="x" * 500)
        assert 1000 < space.num_held <= 3000  # the half of one tenant
        for connection in connections:
            await connection.close()
        await holds(lambda: not space.num_held)


async def test_nothing_is_compressed() -> None:
    async with socket_service(Model()) as service:
        connection = await service.connection(compression="deflate")
        assert connection.response is not None
        assert "sec-websocket-extensions" not in connection.response.headers
