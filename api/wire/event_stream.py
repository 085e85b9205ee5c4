"""A stream of frames as an HTTP response, whatever happens to the generator behind it or to the client.

Not Starlette's StreamingResponse: it sees the first frame before it chooses the status, and a
frame costs it one message. Frames are vLLM's text (str), or ready for the wire (bytes).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.wire.errors import error_response
from api.wire.sse import DONE, HEADERS, KEEP_ALIVE, ErrorIn, to_wire

T = TypeVar("T")


class ClientLeft(Exception):
    """There is nobody to answer any more."""


class NoResponse(Response):
    """To a client that has left: sending to it may wait for ever."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pass


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Cancel the work as soon as the client leaves, and raise ClientLeft. The request's body must have been read."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        await _cancelled(working, watching)


class EventStream(Response):
    """Until the first frame, or until `keep_alive_s` have passed without one, the status is open: an error is an error
    response. Then errors are frames, a comment follows each `keep_alive_s` of silence, and exactly one terminal frame
    ends the stream.
    """

    def __init__(
        self,
        frames: AsyncGenerator[str | bytes, None],
        error_in: ErrorIn,
        headers_of_status: Callable[[], dict[str, str]],
        keep_alive_s: float,
    ) -> None:
        """`headers_of_status` are asked for when it is sent."""
        self.background = None
        self._frames = frames
        self._error_in = error_in
        self._headers_of_status = headers_of_status
        self._keep_alive_s = keep_alive_s
        self._is_started = False
        self._is_sending = False
        self._last_sent_at = 0.0
        self._comment: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._last_sent_at = asyncio.get_running_loop().time()
        pump = asyncio.ensure_future(self._pump(scope, receive, send))
        watching = asyncio.ensure_future(_disconnected(receive))
        try:
            while not (pump.done() or watching.done()):
                await self._wait_or_comment({pump, watching}, send)
        finally:
            await _cancelled(pump, watching, *([self._comment] if self._comment else []))
        if not pump.cancelled():
            pump.result()

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        time = asyncio.get_running_loop().time
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                if frame == DONE:
                    break
                if self._comment is not None:
                    await self._comment
                self._is_sending = True
                if not self._is_started:
                    if isinstance(frame, str) and (error := self._error_in(frame)):
                        await error_response(error)(scope, receive, send)
                        return
                    await self._start(send)
                body = frame if isinstance(frame, bytes) else to_wire(frame, self._error_in)
                await send({"type": "http.response.body", "body": body, "more_body": True})
                self._is_sending = False
                self._last_sent_at = time()
        self._is_sending = True
        if not self._is_started:
            await self._start(send)
        await send({"type": "http.response.body", "body": DONE.encode(), "more_body": False})

    async def _wait_or_comment(self, tasks: set[asyncio.Future[None]], send: Send) -> None:
        """Wait until one of the tasks ends or the client has heard nothing for too long."""
        comment, time = self._comment, asyncio.get_running_loop().time
        if comment is not None:
            await asyncio.wait(tasks | {comment}, return_when=asyncio.FIRST_COMPLETED)
            if comment.done():
                self._comment, self._last_sent_at = None, time()
                comment.result()
            return
        due_in = self._last_sent_at + self._keep_alive_s - time()
        done, _ = await asyncio.wait(tasks, timeout=max(0.0, due_in), return_when=asyncio.FIRST_COMPLETED)
        if done or time() < self._last_sent_at + self._keep_alive_s:
            return
        if self._is_sending:  # the client is slow: there is something to send
            self._last_sent_at = time()
        else:
            self._comment = asyncio.ensure_future(self._send_comment(send))

    async def _send_comment(self, send: Send) -> None:
        if not self._is_started:
            await self._start(send)
        await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})

    async def _start(self, send: Send) -> None:
        self._is_started = True
        headers = [(name.encode(), value.encode()) for name, value in (HEADERS | self._headers_of_status()).items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    """When this returns, each task has ended and cleaned up; how is of no interest (vLLM's code answers a cancellation
    with an error of its own).
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
