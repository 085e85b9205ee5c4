"""uvicorn's WebSocket protocol with limits that uvicorn lacks: on time, memory, fragments, pings and connections.

A connection counts from its upgrade on as one of the listener's (api/server/protocol.py), and is idle while no message
is being answered. uvicorn and the library `websockets` do the framing, and limit the size of a message.

A connection that exceeds a limit is closed with a code, and is read for LINGER_S more, so that its client can read the
code. One whose time is over is not cut off: the application is told (END, api/edge/socket.py), and closes it.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame
from websockets.http11 import Request

from api.edge.byte_budget import Share
from api.edge.request_id import HEADER, request_id_of
from api.edge.socket import END, EXTENSION, IDLE, IS_TEXT, NOT_ALLOWED, NOT_UTF8, TRY_LATER, SocketEnding
from api.server.protocol import LINGER_S, MAX_LINGERING, Deadlines, Gatekeeper, Guarded, quiet, whole_answer
from cluster.errors import InvalidRequest, Overloaded
from cluster.metrics.requests import HTTP_REFUSALS

MAX_FRAGMENTS = 4096
"""Frames of one message. Clients that send messages in pieces send pieces of 16 KiB and more. More takes memory for
frames without content; fewer refuses long messages in short pieces.
"""
MAX_CONTROL_FRAMES = 20
"""Pings and pongs of a client within CONTROL_S. A client sends one ping in 20 s, and one pong for each ping. More lets
clients cost more CPU; fewer closes connections of clients that measure their network.
"""
CONTROL_S = 10.0
"""The time in which pings and pongs are counted, in seconds. Longer closes connections of clients that ping often;
shorter lets clients cost more CPU.
"""
MAX_QUEUED = 64
"""Complete messages of a client that the application has not taken yet. The application takes each at once, and lets 16
wait (api/responses/socket_loop.py), so that more come only in a flood of short ones. More lets a flood keep the event
loop from other connections for longer, by some 50 us for each; fewer closes connections of clients that send many
messages at once.
"""
PARSED_BYTES = 8 << 10
"""Bytes that are parsed at a time, before the limits are looked at: they may have 1365 frames, which take 5 ms. More
keeps the event loop from other connections for longer; fewer takes more steps for each long message.
"""


class BoundedSocket(WebSocketsSansIOProtocol):
    """The handshake, and the limits on what a client sends."""

    def __init__(self, gatekeeper: Gatekeeper, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.logger = self.conn.logger = quiet
        self._gatekeeper = gatekeeper
        self._limits = ArrivalLimits(gatekeeper)
        self._is_cut = False

    def data_received(self, data: bytes) -> None:
        if self._is_cut:
            return
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.abort()  # a client has to wait for the answer
            return
        if not self.handshake_complete:
            super().data_received(data)
            if not self.handshake_initiated and not self._is_cut:
                self._refuse_handshake("the headers are not valid, or are too long", None)
            return
        for first in range(0, len(data), PARSED_BYTES):
            super().data_received(data[first : first + PARSED_BYTES])
            if self._is_cut:
                return
            self._check_arrivals(min(PARSED_BYTES, len(data) - first))

    def handle_connect(self, event: Request) -> None:
        try:
            self.conn.process_request(event)
        except InvalidHandshake as error:
            self._refuse_handshake(str(error), event.headers.get(HEADER.decode()))
            return
        super().handle_connect(event)
        self.scope["extensions"][EXTENSION] = {}

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self._cut(NOT_ALLOWED, "too many fragments")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """A message is complete. Its text stays as it came: the application would encode again what uvicorn decodes."""
        data, self.frames = b"".join(self.frames), []
        if self.close_sent:
            return
        if self.queue.qsize() >= MAX_QUEUED:
            self._cut(NOT_ALLOWED, "too many messages at once")
            return
        is_text = self.curr_msg_data_type == "text"
        if is_text and not _is_utf8(data):
            self._cut(NOT_UTF8, "messages must be UTF-8")
            return
        self._limits.num_queued_bytes += len(data)
        self.queue.put_nowait(_arrived(data, is_text=is_text))
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_ping(self) -> None:
        if not self._is_cut:
            super().handle_ping()
            self._count_control_frame()

    def handle_pong(self, event: Frame) -> None:
        super().handle_pong(event)
        self._count_control_frame()

    def handle_parser_exception(self) -> None:
        """The client has sent something that is not valid, or too long, and `websockets` has chosen the code."""
        closed = self.conn.close_sent
        self._linger(closed.code if closed is not None else NOT_ALLOWED)

    def _check_arrivals(self, number: int) -> None:
        """Count what has arrived of a message that is not complete."""
        unparsed = len(self.conn.reader.buffer)
        try:
            self._limits.count(number, unparsed + sum(map(len, self.frames)), is_partial=bool(unparsed or self.frames))
        except Overloaded:
            self._cut(TRY_LATER, "no memory for messages")

    def _count_control_frame(self) -> None:
        if self._limits.are_too_many_controls():
            self._cut(NOT_ALLOWED, "too many pings")

    def _cut(self, code: int, reason: str) -> None:
        if not self._is_cut:
            self.conn.fail(code, reason)
            self._linger(code)

    def _linger(self, code: int) -> None:
        """Send the code, and drop what the client still sends, until it has read the code or LINGER_S are over."""
        HTTP_REFUSALS.labels(f"websocket_{code}").inc()
        self._is_cut = self.close_sent = True
        self.stop_keepalive()
        self.frames = []
        self._limits.share.release()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})
        self.transport.write(b"".join(self.conn.data_to_send()))
        ending, guarded = self._gatekeeper.ending, cast(Guarded, self)
        if self.transport.is_closing() or len(ending) >= MAX_LINGERING:
            self.transport.abort()
            return
        self._gatekeeper.connections.remove(guarded)
        ending.add(guarded)
        self.transport.resume_reading()
        self.transport.write_eof()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _refuse_handshake(self, why: str, request_id: str | None) -> None:
        """Answer as over HTTP, and close."""
        error = InvalidRequest(f"the WebSocket handshake is not valid: {why}", None, "invalid_websocket_handshake")
        HTTP_REFUSALS.labels(error.code or "").inc()
        name = request_id_of(None if request_id is None else request_id.encode("latin-1"))
        self._is_cut = self.handshake_initiated = self.handshake_complete = self.close_sent = True
        self.transport.write(whole_answer(error, self.default_headers, name, ""))
        self.transport.close()


class GuardedSocket(BoundedSocket):
    """The limits on time and connections, and ASGI's channels."""

    def __init__(self, gatekeeper: Gatekeeper, **of_uvicorn: Any) -> None:
        super().__init__(gatekeeper, **of_uvicorn)
        self._deadlines = Deadlines(self.loop)
        self._lives_until = self.loop.time() + gatekeeper.config.websockets.lifetime_s
        self._closed_at: float | None = None
        """When the connection was first seen to be closing. None before."""
        self._ending: SocketEnding | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._gatekeeper.connections.add(self, self.client[0] if self.client else "")
        self._gatekeeper.connections.is_busy(self)
        if self._gatekeeper.is_leaving:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._limits.share.release()
        self._gatekeeper.connections.remove(self)
        self._gatekeeper.ending.discard(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._deadlines.expect_read_within(self._gatekeeper.config.unread_timeout_s)
        self.transport.pause_reading()  # a client that does not read gets no more pongs

    def resume_writing(self) -> None:
        super().resume_writing()
        self._deadlines.unread = None
        if not self.read_paused:
            self.transport.resume_reading()

    async def receive(self) -> Any:
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._gatekeeper.connections.is_busy(self)
            self._deadlines.request = None
            self._limits.release(len(message["bytes"] or b""))
        if not self.writable.is_set():
            self.transport.pause_reading()
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == IDLE:
            self._becomes_idle()  # at once: a wait could make a connection idle whose next message is being answered
            return
        await self.writable.wait()
        if self.close_sent and self.handshake_complete:
            raise ClientDisconnected
        if message["type"] == "websocket.http.response.start":
            message = {**message, "headers": [*self.default_headers, *message["headers"]]}
        await super().send(message)

    def shutdown(self) -> None:
        """The replica ends. The application closes the connection, after the response that runs."""
        self._end(SocketEnding.LEAVING)

    def end(self) -> None:
        """There are too many connections."""
        self._end(SocketEnding.SURPLUS)
        self._gatekeeper.connections.remove(self)
        self._gatekeeper.ending.add(self)
        self._closed_at = self.loop.time()

    def end_if_late(self, now: float) -> None:
        if self._closed_at is None and (self.close_sent or self.transport.is_closing()):
            self._closed_at = now
        idle_until, unread_until = self._deadlines.request, self._deadlines.unread
        if self._closed_at is not None:
            if now >= self._closed_at + LINGER_S:
                self.transport.abort()
        elif unread_until is not None and unread_until <= now:
            HTTP_REFUSALS.labels("client_too_slow").inc()
            self.transport.abort()
        elif self._limits.are_late(now):
            self._cut(NOT_ALLOWED, "the message came too slowly")
        elif self._lives_until <= now:
            self._end(SocketEnding.LIFETIME)
        elif idle_until is not None and idle_until <= now:
            self._end(SocketEnding.UNUSED)

    def _end(self, ending: SocketEnding) -> None:
        if self._ending is None:
            self._ending = ending
            self.queue.put_nowait(_ended(ending))

    def _becomes_idle(self) -> None:
        self._gatekeeper.connections.is_idle(self)
        self._deadlines.expect_request_within(self._gatekeeper.config.websockets.idle_timeout_s)


class ArrivalLimits:
    """Counts what arrives on one WebSocket: the bytes of messages that the application has not got yet, and pings."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._config = gatekeeper.config
        self._loop = asyncio.get_running_loop()
        self.share = Share(gatekeeper.budget)
        self.num_queued_bytes = 0
        """Bytes of complete messages."""
        self._began_at: float | None = None
        """When the first byte came of a message that is not complete. None without such a message."""
        self._num_message_bytes = self._num_controls = 0
        self._controls_since = 0.0

    def count(self, number: int, partial_bytes: int, *, is_partial: bool) -> None:
        """Counts `number` bytes that came. `partial_bytes`: what is held of a message that is not complete, if
        `is_partial`. Raises Overloaded if there is no memory for them.
        """
        if not is_partial:
            self._began_at, self._num_message_bytes = None, 0
        else:
            self._began_at = self._loop.time() if self._began_at is None else self._began_at
            self._num_message_bytes += number
        self.share.hold(self.num_queued_bytes + partial_bytes)

    def release(self, number: int) -> None:
        """The application has got a message of this many bytes."""
        self.num_queued_bytes -= number
        self.share.give_back(number)

    def are_late(self, now: float) -> bool:
        """Whether a message comes more slowly than a body may."""
        config = self._config
        return self._began_at is not None and (
            now > self._began_at + config.body_grace_s + self._num_message_bytes / config.min_body_bytes_per_s
        )

    def are_too_many_controls(self) -> bool:
        """Counts a ping or a pong. True if there were too many of them."""
        now = self._loop.time()
        if now >= self._controls_since + CONTROL_S:
            self._controls_since, self._num_controls = now, 0
        self._num_controls += 1
        return self._num_controls > MAX_CONTROL_FRAMES


def _is_utf8(data: bytes) -> bool:
    try:
        return data.isascii() or bool(data.decode())
    except UnicodeDecodeError:
        return False


def _arrived(data: bytes, *, is_text: bool) -> Any:
    """A message, with the mark of the extension at those that are texts."""
    return {"type": "websocket.receive", "bytes": data, IS_TEXT: is_text}


def _ended(ending: SocketEnding) -> Any:
    """The message of the extension, which uvicorn's type of messages does not have."""
    return {"type": END, "ending": ending.value}
