"""Connections between processes, over real sockets of this machine."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from cluster.config.environment import SECRET_VARIABLE
from cluster.errors import InvalidRequest, Overloaded, ServingError, UnknownMessage
from cluster.messages.ids import Address
from cluster.network.certificates import use_certificates
from cluster.network.handshake import GREETING_BYTES, NONCE_BYTES, PROCESS_BYTES, ListenerHandshake
from cluster.network.secret import cluster_secret
from cluster.rpc.connection import Connection, ConnectionLost, Service
from cluster.rpc.frames import FrameKind, Method, encoded
from cluster.rpc.listener import Listener, connect
from tests.certificates import Authority

DOUBLE = Method[int, int]("double", int, int)
REFUSE = Method[str, None]("refuse", str)
HANG = Method[None, None]("hang", None)
MISREAD = Method[str, int]("refuse_nothing", str, int)
ODD = Method[str, object]("odd", str, object)
NOTE = Method[str, None]("note", str)
SWAP = Method[bytes, bytes]("swap", bytes, bytes)


@pytest.fixture(params=["in clear", "over TLS"])
def either_way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    use_certificates(Authority().issued(tmp_path / "node") if request.param == "over TLS" else None)
    yield
    use_certificates(None)


in_both_ways = pytest.mark.usefixtures("either_way")


class Server(Service):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.noted = asyncio.Event()
        self.hanging = asyncio.Event()
        self.ended_hanging = asyncio.Event()
        self.connections_lost = 0
        self.lost = asyncio.Event()
        self.on_call(DOUBLE, self._double)
        self.on_call(REFUSE, self._refuse)
        self.on_call(HANG, self._hang)
        self.on_call(Method[str, str](MISREAD.name, str, str), self._misread)
        self.on_call(ODD, self._odd)
        self.on_post(NOTE, self._note)
        self.when_closed(self._closed)

    async def _double(self, number: int) -> int:
        return 2 * number

    async def _refuse(self, kind: str) -> None:
        if kind == "bug":
            raise ZeroDivisionError("no luck")
        raise Overloaded("later", 2.5) if kind == "busy" else InvalidRequest("bad", "field", "code")

    async def _misread(self, text: str) -> str:
        return text

    async def _odd(self, kind: str) -> object:
        match kind:
            case "cannot be encoded":
                return object()
            case "error cannot be encoded":
                raise InvalidRequest("\ud800")
            case _:
                raise asyncio.CancelledError

    async def _hang(self, _: None) -> None:
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended_hanging.set()

    def _note(self, connection: Connection, note: str) -> None:
        if note == "bug":
            raise KeyError(note)
        self.notes.append(note)
        self.noted.set()

    def _closed(self, connection: Connection) -> None:
        self.connections_lost += 1
        self.lost.set()


@asynccontextmanager
async def linked(server: Server, client: Service | None = None) -> AsyncIterator[tuple[Listener, Connection]]:
    listener = await Listener.start("127.0.0.1", server)
    connection = await connect(listener.address, client or Service())
    try:
        yield listener, connection
    finally:
        connection.close()
        await listener.close()
        await asyncio.wait_for(server.lost.wait(), 5)


async def heard_by_stranger(listener: Listener, said: bytes) -> bytes:
    """Until the listener closes the connection."""
    reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port)
    writer.write(said)
    heard = bytearray()
    with suppress(ConnectionError):
        async with asyncio.timeout(5):
            while data := await reader.read(1 << 16):
                heard += data
    writer.close()
    return bytes(heard)


@in_both_ways
async def test_many_calls_side_by_side_get_their_own_answers() -> None:
    async with linked(Server()) as (_, connection):
        answers = await asyncio.gather(*(connection.call(DOUBLE, n) for n in range(500)))
    assert answers == [2 * n for n in range(500)]


@in_both_ways
async def test_posts_arrive_in_order_and_whole_whatever_their_size() -> None:
    server = Server()
    notes = [str(n) * (n * n * 50) for n in range(1, 40)]
    async with linked(server) as (_, connection):
        for note in notes:
            connection.post(NOTE, note)
        await connection.call(DOUBLE, 1)
    assert server.notes == notes


@in_both_ways
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("busy", Overloaded("later", 2.5)),
        ("bad", InvalidRequest("bad", "field", "code")),
        ("bug", ServingError("refuse failed: ZeroDivisionError: no luck")),
    ],
)
async def test_error_of_a_handler_reaches_the_caller(
    kind: str, error: Overloaded | InvalidRequest | ServingError, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(Server()) as (_, connection):
        with pytest.raises(type(error)) as raised:
            await connection.call(REFUSE, kind)
    assert (raised.value.args, vars(raised.value)) == (error.args, vars(error))
    assert ("ZeroDivisionError" in caplog.text) == (kind == "bug")


@pytest.mark.parametrize("kind", ["cannot be encoded", "error cannot be encoded", "cancels itself"])
async def test_answer_that_cannot_be_given_is_an_error_and_not_a_wait_for_ever(kind: str) -> None:
    async with linked(Server()) as (_, connection):
        with pytest.raises(ServingError):
            await asyncio.wait_for(connection.call(ODD, kind), 5)
        assert await connection.call(DOUBLE, 2) == 4


async def test_answer_that_cannot_be_read_is_an_error_and_not_a_wait_for_ever() -> None:
    async with linked(Server()) as (_, connection):
        with pytest.raises(ServingError, match="cannot be read"):
            await asyncio.wait_for(connection.call(MISREAD, "no number"), 5)


async def test_bug_in_a_post_s_handler_is_logged_and_costs_nobody_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with linked(Server()) as (_, connection):
        connection.post(NOTE, "bug")
        assert await connection.call(DOUBLE, 2) == 4
    assert "note failed" in caplog.text
    assert "KeyError" in caplog.text


NEW_CALL = Method[str, str]("of_a_later_version", str, str)
NEW_POST = Method[str, None]("of_a_later_version", str)
OTHER_DOUBLE = Method[str, int]("double", str, int)
OTHER_NOTE = Method[int, None]("note", int)


@pytest.mark.parametrize("method", [NEW_CALL, OTHER_DOUBLE])
async def test_call_that_the_other_version_does_not_know_is_an_error_and_ends_nothing_else(
    method: Method[str, object],
) -> None:
    server = Server()
    async with linked(server) as (_, connection):
        call = asyncio.create_task(connection.call(HANG, None))
        await asyncio.wait_for(server.hanging.wait(), 5)
        with pytest.raises(UnknownMessage):
            await asyncio.wait_for(connection.call(method, "text"), 5)
        assert not call.done()
        call.cancel()
        assert await connection.call(DOUBLE, 2) == 4


async def test_posts_that_the_other_version_does_not_know_are_logged_once_and_end_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with linked(Server()) as (_, connection):
        for number in range(10):
            connection.post(NEW_POST, "text")
            connection.post(OTHER_NOTE, number)
        assert await connection.call(DOUBLE, 2) == 4
    assert caplog.text.count("are ignored") == 2


@in_both_ways
async def test_answers_that_a_handler_has_at_once_are_given_in_the_order_of_the_calls() -> None:
    service, done = Service(), list[int]()

    def count(_: Connection, number: int) -> int:
        done.append(number)
        return 2 * number

    service.on_call_of(DOUBLE, count)
    service.on_post(NOTE, lambda _, note: done.append(int(note)))
    listener = await Listener.start("127.0.0.1", service)
    connection = await connect(listener.address, Service())
    first = asyncio.create_task(connection.call(DOUBLE, 1))
    await asyncio.sleep(0)
    connection.post(NOTE, "2")
    assert await connection.call(DOUBLE, 3) == 6
    assert (await first, done) == (2, [1, 2, 3])
    connection.close()
    await listener.close()


@in_both_ways
async def test_message_that_is_too_long_is_the_sender_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.rpc.frames.MAX_FRAME_BYTES", 1000)
    async with linked(Server()) as (_, connection):
        with pytest.raises(ServingError, match="too long"):
            connection.post(NOTE, "x" * 2000)
        assert await connection.call(DOUBLE, 2) == 4


async def test_stranger_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.network.proving.UNPROVED_TIMEOUT_S", 0.1)
    async with linked(Server()) as (listener, connection):
        assert len(await heard_by_stranger(listener, b"")) == GREETING_BYTES
        assert await connection.call(DOUBLE, 2) == 4


@in_both_ways
async def test_cancelled_call_is_cancelled_on_the_other_side() -> None:
    server = Server()
    async with linked(server) as (_, connection):
        call = asyncio.create_task(connection.call(HANG, None))
        await asyncio.wait_for(server.hanging.wait(), 5)
        call.cancel()
        await asyncio.wait_for(server.ended_hanging.wait(), 5)
        assert await connection.call(DOUBLE, 2) == 4


async def test_call_that_is_cancelled_before_its_handler_has_begun_leaves_no_warning() -> None:
    """Both messages are read together, and warnings are errors here."""
    server = Server()
    async with linked(server) as (_, connection):
        call = asyncio.create_task(connection.call(HANG, None))
        await asyncio.sleep(0)
        call.cancel()
        assert await connection.call(DOUBLE, 2) == 4
    gc.collect()
    assert not server.hanging.is_set()


@in_both_ways
async def test_calls_fail_at_once_when_the_other_side_goes_away() -> None:
    server = Server()
    async with linked(server) as (listener, connection):
        call = asyncio.create_task(connection.call(HANG, None))
        await asyncio.wait_for(server.hanging.wait(), 5)
        await listener.close()
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(call, 5)
        with pytest.raises(ConnectionLost):
            connection.post(NOTE, "too late")
        assert not connection.is_open


@in_both_ways
async def test_handlers_of_a_caller_that_is_gone_are_cancelled() -> None:
    server = Server()
    async with linked(server) as (_, connection):
        call = asyncio.create_task(connection.call(HANG, None))
        await asyncio.wait_for(server.hanging.wait(), 5)
        connection.close()
        await asyncio.wait_for(server.ended_hanging.wait(), 5)
        with pytest.raises(ConnectionLost):
            await call


@in_both_ways
async def test_nobody_listening_is_a_lost_connection() -> None:
    listener = await Listener.start("127.0.0.1", Service())
    await listener.close()
    with pytest.raises(ConnectionLost):
        await connect(listener.address, Service())


@in_both_ways
async def test_process_without_the_secret_is_refused_and_knows_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cluster.network.strangers.LOG_INTERVAL_S", 0.0)
    monkeypatch.setenv(SECRET_VARIABLE, "o" * 40)
    listener = await Listener.start("127.0.0.1", Server())
    monkeypatch.setenv(SECRET_VARIABLE, "p" * 40)
    with pytest.raises(ConnectionLost, match="same secret"):
        await connect(listener.address, Service())
    await listener.close()
    assert "at the channel: wrong_proof" in caplog.text
    assert f"at the peer: refused, 127.0.0.1:{listener.address.port}" in caplog.text


@in_both_ways
async def test_process_that_has_taken_the_port_of_another_is_not_taken_for_it() -> None:
    listener = await Listener.start("127.0.0.1", Server())
    former = msgspec.structs.replace(listener.address, process="00" * PROCESS_BYTES)
    with pytest.raises(ConnectionLost, match="another process"):
        await connect(former, Service())
    await listener.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x03abc",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xc1",
    ],
    ids=["http", "not a frame", "too long", "not msgpack"],
)
async def test_garbage_closes_the_connection_and_nothing_else(garbage: bytes) -> None:
    async with linked(Server()) as (listener, connection):
        assert len(await heard_by_stranger(listener, garbage)) == GREETING_BYTES
        assert await connection.call(DOUBLE, 2) == 4


@in_both_ways
async def test_sender_is_told_when_the_other_side_stops_reading_and_when_it_reads_again() -> None:
    sender, writable = Service(), asyncio.Event()
    sender.on_writable = lambda connection: writable.set()
    server = Server()
    async with linked(server, sender) as (_, connection):
        assert connection.is_writable
        sent = 0
        while connection.is_writable:  # the receiver shares this event loop and cannot read meanwhile
            connection.post(NOTE, "x" * 100_000)
            sent += 1
        await asyncio.wait_for(writable.wait(), 5)
        await connection.call(DOUBLE, 1)
        assert connection.is_writable
    assert len(server.notes) == sent


async def test_each_process_has_an_id_of_its_own() -> None:
    one, two = [await Listener.start("127.0.0.1", Service()) for _ in range(2)]
    assert one.address.process != two.address.process
    await one.close()
    await two.close()


async def test_other_side_that_hangs_without_dying_is_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cluster.rpc.connection.PING_INTERVAL_S", 0.02)
    process, closed = "00" * PROCESS_BYTES, asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handshake = ListenerHandshake(cluster_secret(), process, bytes(NONCE_BYTES))
        writer.write(handshake.greeting())
        while (proof := handshake.take(await reader.read(1 << 16))) is None:
            pass
        writer.write(proof)
        while await reader.read(1 << 16):
            pass
        writer.close()
        closed.set()

    async with await asyncio.start_server(says_nothing, "127.0.0.1", 0) as mute:
        host, port = mute.sockets[0].getsockname()
        connection = await connect(Address(host, port, process), Service())
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(5):
                await connection.call(DOUBLE, 1)
        await asyncio.wait_for(closed.wait(), 5)
    assert "does not answer pings" in caplog.text


async def test_listener_that_never_proves_itself_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.network.proving.PROOF_TIMEOUT_S", 0.1)
    left = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        left.set()

    async with await asyncio.start_server(says_nothing, "127.0.0.1", 0) as mute:
        host, port = mute.sockets[0].getsockname()
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(5):
                await connect(Address(host, port, "00" * PROCESS_BYTES), Service())
        await asyncio.wait_for(left.wait(), 5)


@in_both_ways
async def test_large_messages_arrive_whole_in_both_directions_at_once() -> None:
    service = Service()
    service.on_call(SWAP, lambda said: said[::-1])
    listener = await Listener.start("127.0.0.1", service)
    connections = [await connect(listener.address, Service()) for _ in range(2)]
    said = [bytes([number]) * 2 + bytes(size) for number, size in enumerate((0, 1, 1 << 14, 1 << 18, 30_000_000))]
    answers = await asyncio.gather(*(connection.call(SWAP, one) for one in said for connection in connections))
    assert answers == [one[::-1] for one in said for _ in connections]
    for connection in connections:
        connection.close()
    await listener.close()


@in_both_ways
async def test_what_waits_for_a_peer_that_does_not_read_is_bounded_and_is_sent_at_the_end() -> None:
    """The socket's buffer and one message wait, and not a buffer of TLS besides."""
    server = Server()
    async with linked(server) as (_, connection):
        assert connection._transport is not None
        sent = 0
        while connection.is_writable:
            connection.post(NOTE, "x" * 50_000)
            sent += 1
        assert connection._transport.get_write_buffer_size() < 2 * (1 << 16)
        connection.close()
        await asyncio.wait_for(server.lost.wait(), 5)
    assert len(server.notes) == sent


@in_both_ways
async def test_aborted_connection_is_lost_on_both_sides_at_once() -> None:
    server = Server()
    async with linked(server) as (_, connection):
        assert connection._transport is not None
        call = asyncio.create_task(connection.call(HANG, None))
        await asyncio.wait_for(server.hanging.wait(), 5)
        connection._transport.abort()
        assert not connection.is_open
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(call, 5)
        await asyncio.wait_for(server.ended_hanging.wait(), 5)


@in_both_ways
async def test_idle_connection_stays_open_while_both_sides_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.rpc.connection.PING_INTERVAL_S", 0.01)
    server = Server()
    async with linked(server) as (_, connection):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.lost.wait(), 0.3)
        assert await connection.call(DOUBLE, 4) == 8


async def test_answers_to_messages_that_came_together_leave_in_one_write() -> None:
    service, writes, stream = Service(), list[bytes](), socket.socket()
    service.on_call(DOUBLE, lambda number: 2 * number)

    class Transport(asyncio.Transport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return stream if name == "socket" else default

        def is_closing(self) -> bool:
            return False

        def write(self, data: bytes | bytearray | memoryview) -> None:
            writes.append(bytes(data))

    connection = Connection(service)
    connection.connection_made(Transport())
    calls = [encoded(FrameKind.CALL, number, DOUBLE.name, number) for number in range(5)]
    connection.data_received(b"".join(calls[:4]) + calls[4][:-1])
    answers = [encoded(FrameKind.RESULT, number, "", 2 * number) for number in range(5)]
    assert writes == [b"".join(answers[:4])]
    connection.data_received(calls[4][-1:])
    assert writes[1:] == answers[4:]
    connection.write(b"later")
    assert writes[2:] == [b"later"]
    stream.close()
