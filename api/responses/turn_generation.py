"""The generation of one turn: the prompt is fitted into the window, the model is asked, its answer becomes events."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from api.context.draft_builder import chat_of
from api.context.manager import ContextManager, Fitted
from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.responses.titles import Titles
from api.responses.turn_record import TurnRecord
from api.state.postgres.stores.history import History
from api.state.postgres.stores.items import Item
from api.wire.responses.events import Event, ResponseWriter
from api.wire.responses.request import ResponseRequest
from cluster.errors import UNFORESEEN, Overloaded, RateLimited, ServingError

BACKGROUND_WITHIN_S = 3600.0
"""How long a response in the background waits for workers that can take it, in seconds. Shorter fails more responses
under long overload; longer answers when the client may no longer look.
"""
MIN_BACKGROUND_WAIT_S = 1.0
"""The shortest time between two tries of a response in the background, in seconds. Shorter renders and screens more
tries that are refused; longer starts later when workers are free.
"""
MAX_BACKGROUND_WAIT_S = 30.0
"""The longest time between two tries of a response in the background, in seconds. Shorter makes more tries that are
refused; longer starts later when workers are free.
"""


class TurnServices(NamedTuple):
    """The services that generate turns."""

    frontend: Frontend
    context: ContextManager
    titles: Titles


class TurnGeneration:
    def __init__(self, tenant: str, request: ResponseRequest, writer: ResponseWriter, record: TurnRecord) -> None:
        """`writer`: makes the events of the response. `record`: gets them."""
        self._tenant = tenant
        self._request = request
        self._writer = writer
        self._record = record
        self.fitted: Fitted | None = None
        """The prompt, once it is fitted into the window."""

    async def run(self, services: TurnServices, history: History, items: list[Item], call: Call) -> list[Event]:
        """Record all events except the last ones, which are returned. Raises ServingError. A response in the background
        waits for workers for BACKGROUND_WITHIN_S before it fails. For room in its limits it does not wait.
        """
        fitted = await self._fit(services.context, history, items)
        body = await chat_of(self._request, fitted.items)
        until = time.monotonic() + BACKGROUND_WITHIN_S
        while True:
            try:
                return await self._answered(await services.frontend.chat_completion(body, call), call)
            except RateLimited:
                raise
            except Overloaded as error:
                if not self._request.is_background or self._writer.has_begun or time.monotonic() > until:
                    raise
                await asyncio.sleep(min(max(error.retry_after_s, MIN_BACKGROUND_WAIT_S), MAX_BACKGROUND_WAIT_S))
                call = call.again()

    async def _fit(self, context: ContextManager, history: History, items: list[Item]) -> Fitted:
        """Raises ServingError."""
        response = self._writer.response
        stored = response["id"] if self._record.is_kept else None
        self.fitted = await context.fit(self._tenant, self._request, history, items, stored)
        if self.fitted.report is not None:
            response["context"] = self.fitted.report
        return self.fitted

    async def _answered(self, answer: Any, call: Call) -> list[Event]:
        """Raises ServingError."""
        async with aclosing(answer) as frames:
            async for chunk in _chunks(frames):
                if "error" in chunk:
                    raise call.error or ServingError(UNFORESEEN)
                self._begin()
                self._record.add(self._writer.take(chunk))
                if self._record.log.is_full:
                    self._writer.cut_off()
                    break
        self._begin()
        return self._writer.end(int(time.time()))

    def _begin(self) -> None:
        if not self._writer.has_begun:
            self._record.add(self._writer.begin())


async def _chunks(frames: AsyncIterator[str | bytes]) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a chat completion in its SSE frames."""
    async for frame in frames:
        text = frame if isinstance(frame, bytes) else frame.encode()
        for line in text.split(b"\n"):
            if line.startswith(b"data: {"):
                yield msgspec.json.decode(line.removeprefix(b"data: "))
