"""One turn of a model: generated and finished, whether or not its client stays."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from api.context.manager import ContextManager, Fitted
from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.responses.titles import Titles
from api.state.encryption.tenant_keys import TenantKey
from api.state.event_streams.event_log import EventLog, LogSpace
from api.state.event_streams.event_writer import EventWriter, RunningResponse
from api.state.postgres.stores.history import History
from api.state.postgres.stores.items import Item, new_id
from api.state.postgres.stores.responses import Ending, Responses
from api.wire.responses.as_chat import chat_body
from api.wire.responses.events import Event, ResponseWriter
from api.wire.responses.request import ResponseRequest
from cluster.errors import UNFORESEEN, InvalidRequest, Overloaded, ServingError, StateUnavailable

logger = logging.getLogger("baton.turns")

PATIENCE_S = 2.0
"""How long a client waits for PostgreSQL to know that its response is over."""
FINISH_RETRY_S = 1.0
FINISH_WITHIN_S = 600.0
"""What was generated while PostgreSQL was away is written when it is back by then."""
BACKGROUND_WITHIN_S = 3600.0
"""How long a response in the background waits for workers that can take it."""
MAX_BACKGROUND_WAIT_S = 30.0
"""Between two tries."""

_CODES: dict[type[ServingError], str] = {InvalidRequest: "invalid_prompt", Overloaded: "rate_limit_exceeded"}
"""Of a response that failed, in OpenAI's ResponseErrorCode."""


class Means(NamedTuple):
    """What a turn is generated with."""

    frontend: Frontend
    context: ContextManager
    titles: Titles


class Turn:
    def __init__(self, tenant: str, request: ResponseRequest, response: dict[str, Any], space: LogSpace) -> None:
        """`response`: as it is created. `space`: for what it tells."""
        self._tenant = tenant
        self._request = request
        self._created = {**response}
        self._writer = ResponseWriter(response, new_id)
        self._log = EventLog(self._created, space)
        self._store: Responses | None = None
        self._log_writer: EventWriter | None = None
        self._running: RunningResponse | None = None
        """How its events become durable; None for one that is not kept."""
        self._refusal: ServingError | None = None
        """Why nothing was generated, which its client is told instead of a response."""
        self._fitted: Fitted | None = None
        self._is_cancelled = False
        self._is_ending = False
        self._is_durable = False
        """As it was generated here."""
        self._is_other = False
        """What is remembered of it was written elsewhere."""
        self._task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return str(self._writer.response["id"])

    def keep(self, store: Responses, log_writer: EventWriter, key: TenantKey) -> None:
        """It has been admitted to the store."""
        self._store, self._log_writer = store, log_writer
        self._running = RunningResponse(key, self.id, self._log, self._status, self._stop)
        log_writer.add(self._running)

    def start(self, means: Means, history: History, items: list[Item], call: Call) -> "asyncio.Task[None]":
        if self._request.is_background:
            self._tell(self._writer.queue())
        self._task = asyncio.create_task(self._run(means, history, items, call))
        return self._task

    def when_over(self, do: Callable[[], None]) -> None:
        """Once it has been started."""
        assert self._task is not None
        self._task.add_done_callback(lambda _: do())

    def leave(self) -> None:
        """Its client is gone. A turn that is kept goes on without it."""
        if self._store is None and self._task is not None:
            self._task.cancel()

    async def cancel(self) -> None:
        """Returns when it is over, and written if that does not take long."""
        assert self._task is not None
        self._stop(is_cancelled=True)
        await asyncio.wait([self._task], timeout=PATIENCE_S)

    async def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Those after this one, as JSON. Raises ServingError where there is no response."""
        async with aclosing(self._log.read(after)) as events:
            async for event in events:
                yield event
        if self._refusal is not None:
            raise self._refusal

    async def response(self) -> dict[str, Any]:
        """As it was created for one in the background, else once it is over. Raises ServingError."""
        if not self._request.is_background:
            await self._log.over()
            if self._refusal is None and not self._is_other:
                return dict(msgspec.json.decode(msgspec.json.encode(self._writer.response)))
        last = b""
        async with aclosing(self.events()) as events:
            async for event in events:
                last = event
                if self._request.is_background:
                    break
        return dict(msgspec.json.decode(last)["response"])

    async def _run(self, means: Means, history: History, items: list[Item], call: Call) -> None:
        try:
            await self._finish(await self._last(self._generated(means, history, items, call)))
            await self._prepare_the_next(means, call)
        finally:
            self._log.end()  # whatever happens, nobody waits for ever
            self._log.forget()
            if self._running is not None and self._log_writer is not None:
                self._log_writer.forget(self._running)
        if self._is_durable and self._running is not None and self._log_writer is not None:
            await self._log_writer.pass_on(self._running)

    async def _prepare_the_next(self, means: Means, call: Call) -> None:
        """What goes wrong here is nothing to its client."""
        output = self._writer.response["output"]
        try:
            if self._fitted is not None and self._refusal is None:
                means.context.after_turn(self._fitted, output, call)
            if self._running is not None and self._request.conversation and output:
                await means.titles.after_turn(self._tenant, self._request.conversation)
        except Exception:
            logger.exception("behind response %s", self.id)

    async def _last(self, generated: Awaitable[list[Event]]) -> list[Event]:
        """The last events, whatever happens to the generation."""
        try:
            return await generated
        except asyncio.CancelledError:
            return self._writer.cancel() if self._is_cancelled else self._writer.fail("the request was cancelled")
        except ServingError as error:
            return self._failed(error, str(error))
        except Exception as error:
            logger.exception("response %s failed", self.id)
            return self._failed(ServingError(UNFORESEEN), type(error).__name__)

    async def _generated(self, means: Means, history: History, items: list[Item], call: Call) -> list[Event]:
        """Tells all events but the last ones, which it returns. Raises ServingError; in the background not for want of
        workers, but after a long time.
        """
        fitted = await self._fit(means.context, history, items)
        body = chat_body(self._request.body, self._request.body["model"], fitted.items)
        until = time.monotonic() + BACKGROUND_WITHIN_S
        while True:
            try:
                return await self._answered(await means.frontend.chat_completion(body, call), call)
            except Overloaded as error:
                if not self._request.is_background or self._writer.has_begun or time.monotonic() > until:
                    raise
                await asyncio.sleep(min(error.retry_after_s, MAX_BACKGROUND_WAIT_S))
                call = call.again()

    async def _fit(self, context: ContextManager, history: History, items: list[Item]) -> Fitted:
        """Raises ServingError."""
        self._fitted = await context.fit(
            self._tenant, self._request, history, items, self.id if self._running else None
        )
        if self._fitted.report is not None:
            self._writer.response["context"] = self._fitted.report
        return self._fitted

    async def _answered(self, answer: Any, call: Call) -> list[Event]:
        """Raises ServingError."""
        async with aclosing(answer) as frames:
            async for chunk in _chunks(frames):
                if "error" in chunk:
                    raise call.error or ServingError(UNFORESEEN)
                self._begin()
                self._tell(self._writer.take(chunk))
                if self._log.is_full:
                    self._writer.cut_off()
                    break
        self._begin()
        return self._writer.end(int(time.time()))

    def _begin(self) -> None:
        if not self._writer.has_begun:
            self._tell(self._writer.begin())

    def _failed(self, error: ServingError, why: str) -> list[Event]:
        if not len(self._log):
            self._refusal = error
            return []
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "server_error")
        return self._writer.fail(why, code)

    def _status(self) -> str:
        return "in_progress" if self._writer.has_begun else "queued"

    def _tell(self, events: list[Event]) -> None:
        self._log.add(events)
        if self._running is None or self._log_writer is None:
            self._log.release(len(self._log))
        else:
            self._log_writer.tell(self._running)

    def _stop(self, is_cancelled: bool) -> None:
        if self._task is not None and not self._is_ending:
            self._is_cancelled = is_cancelled
            self._task.cancel()

    async def _finish(self, last: list[Event]) -> None:
        """Durable before the client hears that it is over, as long as PostgreSQL is there."""
        self._is_ending = True
        self._log.add(last)
        if self._running is None:
            return
        self._running.is_ending = True
        late = asyncio.get_running_loop().call_later(PATIENCE_S, self._log.end)
        until = time.monotonic() + FINISH_WITHIN_S
        try:
            while not await self._is_written():
                self._log.end()
                if time.monotonic() > until:
                    raise StateUnavailable(f"PostgreSQL has been away for {FINISH_WITHIN_S:g} s", FINISH_RETRY_S)
                await asyncio.sleep(FINISH_RETRY_S)
        except Exception:
            logger.exception("response %s is lost", self.id)
        finally:
            late.cancel()

    async def _is_written(self) -> bool:
        """False while PostgreSQL is away. A turn that was refused has not been: its client may send it again."""
        assert self._store is not None and self._running is not None
        try:
            if self._refusal is None:
                ending = Ending.of(self._writer.response, self._created, self._log.since(0))
                written = await self._store.finish(self._tenant, ending)
                self._is_durable = written is ending.lines
                if written and not self._is_durable:  # else it was deleted meanwhile
                    self._is_other = self._log.settle(written)
            else:
                await self._store.withdraw(self._tenant, self.id)
        except StateUnavailable:
            return False
        return True


async def _chunks(frames: AsyncIterator[str | bytes]) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a chat completion in its SSE frames."""
    async for frame in frames:
        text = frame if isinstance(frame, bytes) else frame.encode()
        for line in text.split(b"\n"):
            if line.startswith(b"data: {"):
                yield msgspec.json.decode(line.removeprefix(b"data: "))
