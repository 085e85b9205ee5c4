"""The messages of one WebSocket, answered one after the other in the order in which they came.

The socket is always read, so that a client that leaves is noticed while its response runs. Messages that come while a
response runs wait, up to MAX_WAITING of them.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from api.edge.request_body import Body, ClientLeft
from api.edge.socket import FAILED, Socket, SocketEnding
from api.wire.responses.socket_messages import error_message
from cluster.errors import RequestTimedOut, ServingError, TooManyRequests
from cluster.metrics.requests import WEBSOCKET_MESSAGES, WEBSOCKETS

logger = logging.getLogger("baton.ingress")

MAX_WAITING = 16
"""Messages of a connection that may wait while a response runs. OpenAI's clients send one at a time. More takes memory
for each connection; fewer refuses clients that send several messages at once.
"""
WAITING_RETRY_S = 1.0
"""The Retry-After of a message for which a connection has no room, in seconds. Shorter brings it back while the same
responses run; longer leaves the connection unused.
"""

Answer = Callable[[Body], AsyncGenerator[bytes, None]]
"""The events that answer a message, an error included. It releases the body."""


class SocketLoop:
    def __init__(self, socket: Socket, answer: Answer) -> None:
        self._socket = socket
        self._answer = answer
        self._waiting: deque[Body] = deque()
        self._working: asyncio.Task[None] | None = None
        self._ending: SocketEnding | None = None

    async def run(self) -> None:
        """Answer all messages, until the connection ends."""
        WEBSOCKETS.inc()
        try:
            while (arrived := await self._socket.next()) is not None:
                if isinstance(arrived, SocketEnding):
                    self._ending = arrived
                    if self._working is None:
                        await self._close(arrived)
                else:
                    await self._take(arrived)
        except ClientLeft:
            pass
        finally:
            WEBSOCKETS.dec()
            if self._working is not None:
                self._working.cancel()
                await asyncio.wait([self._working])
            for body in self._waiting:
                self._drop(body, "left")

    async def _take(self, arrived: Body | ServingError) -> None:
        """Answer a message, or let it wait. One for which there is no room is refused. Raises ClientLeft."""
        if isinstance(arrived, Body) and len(self._waiting) >= MAX_WAITING:
            self._drop(arrived, "refused")
            arrived = TooManyRequests(f"{MAX_WAITING} messages of this connection wait already", WAITING_RETRY_S)
        elif isinstance(arrived, ServingError):
            WEBSOCKET_MESSAGES.labels("refused").inc()
        if isinstance(arrived, ServingError):
            await self._socket.send(error_message(arrived))
            return
        self._waiting.append(arrived)
        if self._working is None:
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """Answer the messages that wait."""
        try:
            while self._waiting and self._ending is None:
                await self._send_answer(self._waiting.popleft())
                if not self._waiting and self._ending is None:
                    await self._socket.tell_idle()  # while which another message, or the ending, may come
            if self._ending is not None:
                await self._close(self._ending)
        except ClientLeft:
            pass
        except Exception:
            logger.exception("a message on a WebSocket failed")
            await self._socket.close(FAILED, "internal error")
        finally:
            self._working = None

    async def _send_answer(self, body: Body) -> None:
        """Raises ClientLeft."""
        try:
            async with aclosing(self._answer(body)) as events:
                async for event in events:
                    await self._socket.send(event)
        finally:
            body.release()

    async def _close(self, ending: SocketEnding) -> None:
        if ending is SocketEnding.LIFETIME:
            error = RequestTimedOut(
                "the connection is too old: open a new one", None, "websocket_connection_limit_reached"
            )
            error.http_status = 400  # OpenAI's
            await self._socket.send(error_message(error))
        await self._socket.close(ending.code, ending.value)

    def _drop(self, body: Body, outcome: str) -> None:
        body.release()
        WEBSOCKET_MESSAGES.labels(outcome).inc()
