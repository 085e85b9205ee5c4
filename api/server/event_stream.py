"""A stream of frames as an HTTP response.

An EventStream replaces Starlette's StreamingResponse: an EventStream sees the first frame before it chooses the status,
and sends one ASGI message per frame. Frames are vLLM's text (str), or ready for the wire (bytes). When the client
leaves, api/edge/exchange.py cancels the response, which closes the generator of the frames.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.edge.capacity import Units
from api.edge.error_response import error_response
from api.wire.sse import DONE, HEADERS, KEEP_ALIVE, ErrorIn, error_frame, to_wire
from cluster.errors import ServingError

logger = logging.getLogger("baton.ingress")

STALL_FACTOR = 4
"""Time after which a stream is closed whose client takes nothing, in multiples of `keep_alive_s`. A lower value closes
streams of slow clients; with a higher value, a dead client holds its generation for longer.
"""


class EventStream(Response):
    """A response of frames. It handles errors, silence and clients that stall as follows.

    1. An error before the status is sent is an error response. The status is sent with the first frame, or after
       `keep_alive_s` seconds without a frame.
    2. A later error is a frame, and one terminal frame ends the stream, as it does without an error. `keep_alive`, a
       comment by default, is sent after each `keep_alive_s` seconds of silence.
    3. If the client takes nothing for STALL_FACTOR times `keep_alive_s`, the stream ends without a terminal frame.
    """

    def __init__(
        self,
        frames: AsyncGenerator[str | bytes, None],
        error_in: ErrorIn,
        headers_of_status: Callable[[], dict[str, str]],
        keep_alive_s: float,
        error_frame: Callable[[ServingError], bytes] = error_frame,
        terminal_frame: bytes = DONE.encode(),
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        """`headers_of_status` is called when the status is sent. `error_frame` makes the frame of an error that comes
        after the status. `terminal_frame` is empty where the frames say by themselves that the stream is over.
        """
        self.background = None
        self._frames = frames
        self._error_in = error_in
        self._headers_of_status = headers_of_status
        self._keep_alive_s = keep_alive_s
        self._error_frame = error_frame
        self._terminal_frame = terminal_frame
        self._keep_alive = keep_alive
        self._is_started = False
        self._is_sending = False
        self._last_sent_at = 0.0
        self._comment: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._is_stalled = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._sent()
        self._watch_silence(send)
        try:
            # A task of its own: in the task of the request, each token would resume all layers of the application.
            self._sending = asyncio.create_task(self._send_all(scope, receive, send))
            await self._sending
        except asyncio.CancelledError:
            if not self._is_stalled:
                raise
            logger.warning("a client took nothing for %.0f s: its stream is closed", STALL_FACTOR * self._keep_alive_s)
        finally:
            await self._end_comments()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._frames) as frames:
                async for frame in frames:
                    if frame == DONE:
                        break
                    if not self._is_started and isinstance(frame, str) and (error := self._error_in(frame)):
                        await self._end_comments()
                        await error_response(error, scope)(scope, receive, send)
                        return
                    body = frame if isinstance(frame, bytes) else to_wire(frame, self._error_in)
                    await self._send(send, body, is_last=False)
        except ServingError as error:
            if not self._is_started:
                raise
            await self._send(send, self._error_frame(error), is_last=False)
        await self._send(send, self._terminal_frame, is_last=True)

    async def _send(self, send: Send, body: bytes, *, is_last: bool) -> None:
        if self._comment is not None:
            await self._comment
        self._is_sending = True
        await self._start(send)
        await send({"type": "http.response.body", "body": body, "more_body": not is_last})
        self._sent()

    async def _start(self, send: Send) -> None:
        if not self._is_started:
            self._is_started = True
            headers = [(name.encode(), value.encode()) for name, value in (HEADERS | self._headers_of_status()).items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})

    def _sent(self) -> None:
        self._is_sending = False
        self._last_sent_at = asyncio.get_running_loop().time()

    def _watch_silence(self, send: Send) -> None:
        """Send a comment after a silence, and end the stream of a client that takes nothing. One timer serves the whole
        stream, so that a frame costs only a time stamp.
        """
        loop = asyncio.get_running_loop()
        now, look_at = loop.time(), self._last_sent_at + self._keep_alive_s
        if now >= look_at:
            if now >= self._last_sent_at + STALL_FACTOR * self._keep_alive_s and self._sending is not None:
                self._is_stalled = True
                self._sending.cancel()
                return
            if not self._is_sending and self._comment is None:  # a frame that waits for a slow client is no silence
                self._comment = asyncio.create_task(self._send_comment(send))
            look_at = now + self._keep_alive_s
        self._timer = loop.call_at(look_at, self._watch_silence, send)

    async def _send_comment(self, send: Send) -> None:
        await self._start(send)
        await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})
        self._sent()
        self._comment = None

    async def _end_comments(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()
            await asyncio.wait([self._comment])


class CountedStream(EventStream):
    """Gives what it holds of a capacity back when it has ended, whether or not a frame was sent."""

    def __init__(self, units: Units, *arguments: Any, **options: Any) -> None:
        """`arguments`, `options`: of an EventStream."""
        super().__init__(*arguments, **options)
        self._units = units

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._units.release()
