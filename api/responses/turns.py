"""One turn of a model: admitted, generated, and finished, whether or not its client stays."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from api.context.manager import ContextManager, Fitted
from api.generation import Call
from api.render import Frontend
from api.responses.chat import chat_body
from api.responses.events import Event, ResponseWriter
from api.responses.request import ResponseRequest, response_of
from api.state.chat_state import ChatState
from api.state.history import History
from api.state.items import Item, new_id, with_ids
from api.state.responses import LEASE, Responses
from cluster.errors import ServingError, StateUnavailable

logger = logging.getLogger("baton.turns")

RENEWALS_PER_LEASE = 3
FINISH_RETRY_S = 1.0
FINISH_WITHIN_S = 600.0
"""What was generated while PostgreSQL was away is written when it is back by then."""


class Turns:
    def __init__(self, frontend: Frontend, state: ChatState, context: ContextManager) -> None:
        self._frontend = frontend
        self._state = state
        self._context = context
        self._running: set[asyncio.Task[Any]] = set()

    async def start(self, tenant: str, request: ResponseRequest, call: Call) -> "Turn":
        """The user's turn is durable when this returns, if it is to be stored. `tenant`: as the state knows it.

        Raises:
            NotFound, Conflict: of the conversation or the previous response.
            StateUnavailable: it needs what is remembered.
        """
        starting = asyncio.create_task(self._start(tenant, request, call))  # all of it, or nothing
        self._keep(starting)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_leave)
            raise

    async def drained(self) -> None:
        """Wait for the turns whose clients have left."""
        while self._running:
            await asyncio.wait(self._running)

    async def _start(self, tenant: str, request: ResponseRequest, call: Call) -> "Turn":
        response = response_of(request, new_id("resp"), int(time.time()))
        items = with_ids(request.items)
        store = self._state.responses if request.is_stored or request.conversation or request.previous else None
        history = History([], {}, [])
        if store is not None and request.is_stored:
            history = await store.admit(tenant, response, items, request.conversation, request.previous)
        elif store is not None:
            history = await store.history(tenant, request.conversation, request.previous)
        turn = Turn(tenant, request, response, store if request.is_stored else None)
        turn.task = asyncio.create_task(turn.run(self._frontend, self._context, history, items, call))
        self._keep(turn.task)
        return turn

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def _leave(starting: "asyncio.Task[Turn]") -> None:
    """The client of a turn has left while it was admitted."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().leave()


class Turn:
    def __init__(
        self, tenant: str, request: ResponseRequest, response: dict[str, Any], store: Responses | None
    ) -> None:
        self._tenant = tenant
        self._request = request
        self._store = store
        self._writer = ResponseWriter(response, new_id)
        self._events: list[Event] = []
        self._more = asyncio.Event()
        self._is_told = False
        """All events are there."""
        self._refusal: Exception | None = None
        """Why nothing was generated."""
        self._fitted: Fitted | None = None
        self.task: asyncio.Task[None] | None = None

    def leave(self) -> None:
        """Its client is gone. A turn that is kept goes on without it."""
        if self._store is None and self.task is not None:
            self.task.cancel()

    async def events(self) -> AsyncGenerator[Event, None]:
        """From the first one on. Raises ServingError where there is none."""
        number = 0
        while True:
            while number < len(self._events):
                yield self._events[number]
                number += 1
            if self._is_told:
                break
            self._more.clear()
            await self._more.wait()
        if self._refusal is not None:
            raise self._refusal

    async def response(self) -> dict[str, Any]:
        """Once it is over. Raises ServingError."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return self._writer.response

    async def run(
        self, frontend: Frontend, context: ContextManager, history: History, items: list[Item], call: Call
    ) -> None:
        try:
            await self._run(frontend, context, history, items, call)
            if self._fitted is not None and self._refusal is None:
                context.after_turn(self._fitted, self._writer.response["output"], call)
        finally:
            self._end([])  # whatever happens, nobody waits for ever

    async def _run(
        self, frontend: Frontend, context: ContextManager, history: History, items: list[Item], call: Call
    ) -> None:
        renewing = asyncio.create_task(self._renew()) if self._store else None
        try:
            await self._fit(context, history, items)
            last = await self._generated(frontend, call)
        except asyncio.CancelledError:
            last = self._writer.fail("the request was cancelled", int(time.time()))
        except ServingError as error:
            last = self._failed(error, str(error))
        except Exception as error:
            logger.exception("response %s failed", self._writer.response["id"])
            last = self._failed(ServingError("the server failed on this request"), type(error).__name__)
        finally:
            if renewing is not None:
                renewing.cancel()
        await self._finish(last)

    async def _fit(self, context: ContextManager, history: History, items: list[Item]) -> None:
        """Raises ServingError."""
        response = self._writer.response
        stored = response["id"] if self._store else None
        self._fitted = await context.fit(self._tenant, self._request, history, items, stored)
        if self._fitted.report is not None:
            response["context"] = self._fitted.report

    async def _generated(self, frontend: Frontend, call: Call) -> list[Event]:
        """Tells all events but the last ones, which it returns. Raises ServingError."""
        assert self._fitted is not None
        body = chat_body(self._request.body, self._request.body["model"], self._fitted.items)
        frames = await frontend.chat_completion(body, call)
        assert not isinstance(frames, dict)
        async with aclosing(frames):
            async for chunk in _chunks(frames):
                if "error" in chunk:
                    raise call.error or ServingError(str(chunk["error"].get("message")))
                self._begin()
                self._tell(self._writer.take(chunk))
        self._begin()
        return self._writer.end(int(time.time()))

    def _begin(self) -> None:
        if not self._events:
            self._tell(self._writer.begin())

    def _failed(self, error: ServingError, why: str) -> list[Event]:
        if not self._events:
            self._refusal = error
        return self._writer.fail(why, int(time.time()))

    def _tell(self, events: list[Event]) -> None:
        self._events += events
        self._more.set()

    async def _renew(self) -> None:
        assert self._store is not None
        while True:
            await asyncio.sleep(LEASE.total_seconds() / RENEWALS_PER_LEASE)
            try:
                await self._store.renew(self._tenant, self._writer.response["id"])
            except Exception as error:
                logger.warning("the lease of response %s was not renewed: %s", self._writer.response["id"], error)

    async def _finish(self, last: list[Event]) -> None:
        """Durable before the client hears that it is over, as long as PostgreSQL is there."""
        until = time.monotonic() + FINISH_WITHIN_S
        try:
            while not await self._is_written():
                self._end(last)
                if time.monotonic() > until:
                    raise StateUnavailable(f"PostgreSQL has been away for {FINISH_WITHIN_S:g} s", FINISH_RETRY_S)
                await asyncio.sleep(FINISH_RETRY_S)
        except Exception:
            logger.exception("response %s is lost", self._writer.response["id"])
        finally:
            self._end(last)

    async def _is_written(self) -> bool:
        """False while PostgreSQL is away. A turn that was refused has not been: its client may send it again."""
        if self._store is None:
            return True
        try:
            if self._refusal is None:
                await self._store.finish(self._tenant, self._writer.response)
            else:
                await self._store.withdraw(self._tenant, self._writer.response["id"])
        except StateUnavailable:
            return False
        return True

    def _end(self, last: list[Event]) -> None:
        if not self._is_told:
            self._is_told = True
            self._tell(last if self._refusal is None else [])


async def _chunks(frames: AsyncIterator[str | bytes]) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a chat completion in its SSE frames."""
    async for frame in frames:
        text = frame if isinstance(frame, bytes) else frame.encode()
        for line in text.split(b"\n"):
            if line.startswith(b"data: {"):
                yield msgspec.json.decode(line.removeprefix(b"data: "))
