"""Messages between Baton's processes, over one long-lived TCP connection per pair of processes. A connection carries
calls and one-way posts, and notices at once when a side ends. A side that answers no ping counts as gone.

Serve's handles find and replace processes, but a call through them costs over a millisecond of CPU time and a streamed
item some hundred microseconds. A message here costs about ten microseconds (cluster/rpc/frames.py). Both sides first
prove that they know the application's secret (cluster/network/handshake.py). cluster/rpc/listener.py makes the
connections.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import msgspec

from cluster.errors import ServingError, UnknownMessage
from cluster.network.handshake import Refused
from cluster.network.keepalive import DEAD_PEER_S, IDLE_S, PROBE_INTERVAL_S, PROBES
from cluster.rpc.frames import (
    PING,
    PONG,
    Frame,
    FrameKind,
    Method,
    decode_failure,
    decoded,
    encoded,
    encoded_failure,
    next_frame,
)

logger = logging.getLogger("baton.connection")
A = TypeVar("A")
R = TypeVar("R")
H = TypeVar("H")
PING_INTERVAL_S = 1.0
"""Time between two checks whether anything was received, in seconds. After a silent interval, a ping is sent. Longer
notices a process that hangs later; shorter sends more pings.
"""
SILENT_INTERVALS, PATIENT_INTERVALS = 4, 12
"""Silent intervals in a row after which a side counts as gone: 4 for the connecting side, which waits for answers, and
12 for the listening side, which would end all its work for the peer. More notices a process that hangs later; fewer
takes a busy process for a dead one. Intervals are counted and not timed, so that a process that was itself stopped for
a while lets its peers speak first.
"""
MAX_LOGGED = 16
"""Posts of one connection, by name, that are logged as unreadable. More lets a peer fill the log; fewer hides what a
process of another version sends.
"""
MOST_HELD_BYTES = 1 << 16
"""Bytes of messages that wait until all received messages are handled, to be sent together. More delays the first of
many answers; fewer makes more system calls.
"""
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: IDLE_S,
    socket.TCP_KEEPINTVL: PROBE_INTERVAL_S,
    socket.TCP_KEEPCNT: PROBES,
    socket.TCP_USER_TIMEOUT: 1000 * DEAD_PEER_S,
}
"""TCP options that end the connection to a node that vanished, after about DEAD_PEER_S."""


class ConnectionLost(ConnectionError):
    """The peer is gone, or was never reached."""


class NobodyThere(ConnectionLost):
    """The process at an address has ended: no process listens on the address, or another process does."""


class Service:
    """The calls and posts that one side of a connection answers."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Method[Any, Any], Callable[[Connection, Any], Any]]] = {}
        self._posts: dict[str, tuple[Method[Any, Any], Callable[[Connection, Any], None]]] = {}
        self._when_closed: list[Callable[[Connection], None]] = []
        self.on_writable: Callable[[Connection], None] = _ignore
        """Called when the peer reads again after `Connection.is_writable` was False."""

    def on_call(
        self, method: Method[A, R], handler: Callable[[A], R | asyncio.Future[R] | Coroutine[Any, Any, R]]
    ) -> None:
        """Answer calls of a method with `handler`. A handler that has its answer at once returns it: messages that were
        received together are then handled in their order. Otherwise the handler returns a future or a coroutine, which
        is cancelled when the caller gives up or is gone. A future takes no task.
        """
        self.on_call_of(method, lambda _, argument: handler(argument))

    def on_call_of(
        self, method: Method[A, R], handler: Callable[["Connection", A], R | asyncio.Future[R] | Coroutine[Any, Any, R]]
    ) -> None:
        """As `on_call`, for a handler that needs the connection of the caller."""
        self._calls[method.name] = (method, handler)

    def when_closed(self, callback: Callable[["Connection"], None]) -> None:
        self._when_closed.append(callback)

    def closed(self, connection: "Connection") -> None:
        for callback in self._when_closed:
            try:
                callback(connection)
            except Exception:  # the remaining callbacks must run, too
                logger.exception("the clean-up after a closed connection failed")

    def on_post(self, method: Method[A, None], handler: Callable[["Connection", A], None]) -> None:
        self._posts[method.name] = (method, handler)

    def answer(self, connection: "Connection", method_name: str, body: msgspec.Raw) -> Any:
        """The answer of a call, or a future or coroutine that gives it. Raises UnknownMessage."""
        method, handler = self._known(self._calls, method_name)
        return handler(connection, decoded(method, body))

    def take(self, connection: "Connection", method_name: str, body: msgspec.Raw) -> None:
        """Take a post. Raises UnknownMessage."""
        method, handler = self._known(self._posts, method_name)
        argument = decoded(method, body)
        try:
            handler(connection, argument)
        except Exception:
            logger.exception("%s failed", method_name)

    @staticmethod
    def _known(handlers: dict[str, H], method_name: str) -> H:
        handler = handlers.get(method_name)
        if handler is None:
            raise UnknownMessage("this process does not know the message")
        return handler


class Connection(asyncio.Protocol):
    """One side of a connection. `connect` and `Listener` make connections."""

    def __init__(self, service: Service, open_ones: set["Connection"] | None = None) -> None:
        """`open_ones` is the set that lists this connection while it is open. None if this process connected to the
        peer.
        """
        self._service = service
        self._was_connected_to = open_ones is not None
        self._open_ones = set() if open_ones is None else open_ones
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._is_taking = False
        """Received messages are being handled: what is sent meanwhile is held."""
        self._held: list[bytes] = []
        self._num_held_bytes = 0
        self._call_ids = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[Any], Any]]] = {}
        self._answers = _Answers(self, service)
        self.is_writable = True
        """False while the peer does not read what it is sent."""
        self.lost = asyncio.Event()
        """Set when everything was sent, or the peer is gone."""
        self._has_heard = False
        """Whether anything was received since the last check."""
        self._num_silent = 0
        """Silent intervals in a row."""
        self._unreadable: set[str] = set()
        """Names of the posts that could not be read, which are logged once."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def peer(self) -> str:
        """The address of the peer, for the log."""
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if peer else "unknown"

    async def call(self, method: Method[A, R], argument: A) -> R:
        """Call a method of the peer. Raises the ServingError that the peer raised, and ConnectionLost if the peer is
        gone. Cancellation cancels the handler of the peer.
        """
        call_id = next(self._call_ids)
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._send(FrameKind.CALL, call_id, method.name, argument)
        self._waiting[call_id] = (answer, method.decode_result)
        try:
            return await answer
        except asyncio.CancelledError:
            if call_id in self._waiting and self.is_open:
                self._send(FrameKind.CANCEL, call_id, method.name, None)
            raise
        finally:
            self._waiting.pop(call_id, None)

    def post(self, method: Method[A, None], argument: A) -> None:
        """Send a message without an answer. Raises ConnectionLost."""
        self._send(FrameKind.POST, 0, method.name, argument)

    def close(self) -> None:
        if self._transport is not None:
            self._send_held()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._open_ones.add(self)
        stream = transport.get_extra_info("socket")
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            stream.setsockopt(socket.IPPROTO_TCP, option, value)
        asyncio.get_running_loop().call_later(PING_INTERVAL_S, self._listen_for_life)

    def data_received(self, data: bytes) -> None:
        self._has_heard = True
        self._received += data
        self._is_taking = True
        try:
            while self.is_open and (frame := next_frame(self._received)) is not None:
                self._take(frame)
        except (msgspec.MsgspecError, KeyError, ValueError, OverflowError, RecursionError) as error:
            logger.warning("closing a connection that does not speak the protocol: %r", error)
            self.close()
        finally:
            self._is_taking = False
            self._send_held()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._service.on_writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, Refused):
            logger.warning("the connection to %s was broken off: %s", self.peer, exc)
        self._open_ones.discard(self)
        self.lost.set()
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionLost("the peer is gone"))
        self._answers.cancel_all()
        self._service.closed(self)

    def _take(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.POST:
                try:
                    self._service.take(self, frame.method, frame.body)
                except UnknownMessage as error:
                    self._note_unreadable(frame.method, error)
            case FrameKind.CALL:
                self._answers.begin(frame)
            case FrameKind.CANCEL:
                self._answers.cancel(frame.call_id)
            case FrameKind.RESULT | FrameKind.FAILURE:
                self._settle(frame)
            case FrameKind.PING:
                self.write(PONG)
            case FrameKind.PONG:
                pass

    def _listen_for_life(self) -> None:
        if self._transport is None or not self.is_open:
            return
        self._num_silent = 0 if self._has_heard else self._num_silent + 1
        self._has_heard = False
        if self._num_silent >= (PATIENT_INTERVALS if self._was_connected_to else SILENT_INTERVALS):
            logger.warning("the process at %s does not answer pings: its connection is aborted", self.peer)
            self._transport.abort()
            return
        if self._num_silent:
            self.write(PING)
        asyncio.get_running_loop().call_later(PING_INTERVAL_S, self._listen_for_life)

    def _settle(self, frame: Frame) -> None:
        answer, decode_result = self._waiting.pop(frame.call_id, (None, None))
        if answer is None or decode_result is None or answer.done():
            return
        try:
            if frame.kind is FrameKind.RESULT:
                answer.set_result(decode_result(frame.body))
            else:
                answer.set_exception(decode_failure(frame.body).to_error())
        except Exception as error:  # a caller must not wait forever
            answer.set_exception(ServingError(f"the answer of a call cannot be read: {error!r}"))

    def _note_unreadable(self, method: str, error: UnknownMessage) -> None:
        if method not in self._unreadable and len(self._unreadable) < MAX_LOGGED:
            self._unreadable.add(method)
            logger.warning("posts %.64r of a peer are ignored: %s", method, error)

    def _send(self, kind: FrameKind, call_id: int, method: str, body: Any) -> None:
        self.write(encoded(kind, call_id, method, body))

    def write(self, frame: bytes) -> None:
        """Send an encoded frame. Raises ConnectionLost."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost("the peer is gone")
        if not self._is_taking:
            self._transport.write(frame)
            return
        self._held.append(frame)
        self._num_held_bytes += len(frame)
        if self._num_held_bytes > MOST_HELD_BYTES:
            self._send_held()

    def _send_held(self) -> None:
        held, self._held, self._num_held_bytes = self._held, [], 0
        if held and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(held))


class _Answers:
    """The answers of one connection to the calls of its peer."""

    def __init__(self, connection: Connection, service: Service) -> None:
        self._connection = connection
        self._service = service
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        """Answers that are not there yet, by the identifier of the call."""

    def begin(self, call: Frame) -> None:
        try:
            answer = self._service.answer(self._connection, call.method, call.body)
        except Exception as error:
            self._reply_failure(call, error)
            return
        if asyncio.iscoroutine(answer):
            answer = asyncio.create_task(answer)
        if isinstance(answer, asyncio.Future):
            self._awaited[call.call_id] = answer
            answer.add_done_callback(lambda answered: self._answered(call, answered))
        else:
            self._reply(call, answer)

    def cancel(self, call_id: int) -> None:
        if answer := self._awaited.pop(call_id, None):
            answer.cancel()

    def cancel_all(self) -> None:
        awaited, self._awaited = self._awaited, {}
        for answer in awaited.values():
            answer.cancel()

    def _answered(self, call: Frame, answer: asyncio.Future[Any]) -> None:
        is_wanted = self._awaited.pop(call.call_id, None) is not None
        if answer.cancelled():
            if is_wanted:  # otherwise the caller has given up, or is gone
                self._reply_failure(call, ServingError(f"{call.method} was cancelled"))
        elif error := answer.exception():
            self._reply_failure(call, error)
        else:
            self._reply(call, answer.result())

    def _reply(self, call: Frame, result: Any) -> None:
        try:
            frame = encoded(FrameKind.RESULT, call.call_id, "", result)
        except ServingError as error:
            self._reply_failure(call, error)
            return
        if self._connection.is_open:
            self._connection.write(frame)

    def _reply_failure(self, call: Frame, error: BaseException) -> None:
        if not isinstance(error, ServingError):
            logger.error("%s failed", call.method, exc_info=error)
            error = ServingError(f"{call.method} failed: {type(error).__name__}: {error}")
        if self._connection.is_open:
            self._connection.write(encoded_failure(call, error))


def _ignore(connection: Connection) -> None:
    pass
