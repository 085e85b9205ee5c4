"""One turn of a conversation: generated and finished, even if its client leaves."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from api.frontend.generation import Call
from api.responses.turn_generation import TurnGeneration, TurnServices
from api.responses.turn_record import PATIENCE_S, TurnRecord
from api.state.encryption.tenant_keys import TenantKey
from api.state.event_streams.event_log import LogSpace
from api.state.event_streams.event_writer import EventWriter, RunningResponse
from api.state.postgres.stores.history import History
from api.state.postgres.stores.items import Item, new_id
from api.state.postgres.stores.responses import Responses
from api.wire.responses.events import Event, ResponseWriter
from api.wire.responses.request import ResponseRequest
from cluster.errors import UNFORESEEN, InvalidRequest, Overloaded, QuotaExceeded, ServingError

logger = logging.getLogger("baton.turns")

_CODES: dict[type[ServingError], str] = {
    InvalidRequest: "invalid_prompt",
    Overloaded: "rate_limit_exceeded",
    QuotaExceeded: "rate_limit_exceeded",
}
"""The code of a failed response in OpenAI's ResponseErrorCode, by the error."""


class Turn:
    def __init__(self, tenant: str, request: ResponseRequest, response: dict[str, Any], space: LogSpace) -> None:
        """`response`: the response as it is created. `space`: the memory for its events."""
        self._tenant = tenant
        self._request = request
        self._writer = ResponseWriter(response, new_id)
        self._record = TurnRecord(tenant, {**response}, space)
        self._generation = TurnGeneration(tenant, request, self._writer, self._record)
        self._refusal: ServingError | None = None
        """The error that clients get instead of a response, because nothing was generated."""
        self._is_cancelled = False
        self._task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return str(self._writer.response["id"])

    def keep(self, store: Responses, event_writer: EventWriter, key: TenantKey) -> None:
        """Store the turn, which `store` has admitted. `key`: seals its events."""
        running = RunningResponse(key, self.id, self._record.log, self._status, self._stop)
        self._record.keep(store, event_writer, running)

    def start(self, services: TurnServices, history: History, items: list[Item], call: Call) -> "asyncio.Task[None]":
        if self._request.is_background:
            self._record.add(self._writer.queue())
        self._task = asyncio.create_task(self._run(services, history, items, call))
        return self._task

    def when_over(self, do: Callable[[], None]) -> None:
        """Call `do` when the turn is over. The turn has been started."""
        assert self._task is not None
        self._task.add_done_callback(lambda _: do())

    def leave(self) -> None:
        """The client of the turn has left. A stored turn goes on without its client."""
        if not self._record.is_kept and self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        """The replica ends: the turn fails, and is stored as far as it got."""
        self._stop(is_cancelled=False)

    async def cancel(self) -> None:
        """Cancel the turn. Returns when its end is stored, or after PATIENCE_S."""
        assert self._task is not None
        self._stop(is_cancelled=True)
        await asyncio.wait([self._task], timeout=PATIENCE_S)

    async def events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The events after event `after`, as JSON. Raises ServingError if the turn was refused."""
        async with aclosing(self._record.log.read(after)) as events:
            async for event in events:
                yield event
        if self._refusal is not None:
            raise self._refusal

    async def response(self) -> dict[str, Any]:
        """The response at its end. In the background: the response as it is created. Raises ServingError."""
        if not self._request.is_background:
            await self._record.log.over()
            if self._refusal is None and not self._record.is_replaced:
                return dict(msgspec.json.decode(msgspec.json.encode(self._writer.response)))
        last = b""
        async with aclosing(self.events()) as events:
            async for event in events:
                last = event
                if self._request.is_background:
                    break
        return dict(msgspec.json.decode(last)["response"])

    async def _run(self, services: TurnServices, history: History, items: list[Item], call: Call) -> None:
        try:
            last = await self._last_events(self._generation.run(services, history, items, call))
            await self._record.finish(last, self._writer.response if self._refusal is None else None)
            await self._prepare_next_turn(services, call)
        finally:
            self._record.close()  # whatever has failed, no client may wait for ever
        await self._record.publish_end()

    async def _prepare_next_turn(self, services: TurnServices, call: Call) -> None:
        """Start the summary and the title that the conversation may need. A failure here is logged, and no client sees
        it.
        """
        output, fitted = self._writer.response["output"], self._generation.fitted
        try:
            if fitted is not None and self._refusal is None:
                services.context.after_turn(fitted, output, call)
            if self._record.is_kept and self._request.conversation and output:
                await services.titles.after_turn(self._tenant, self._request.conversation, call)
        except Exception:
            logger.exception("no summary or title after response %s", self.id)

    async def _last_events(self, generated: Awaitable[list[Event]]) -> list[Event]:
        """The last events of the turn, also if its generation fails or is cancelled."""
        try:
            return await generated
        except asyncio.CancelledError:
            return self._writer.cancel() if self._is_cancelled else self._writer.fail("the request was cancelled")
        except ServingError as error:
            return self._failed(error, str(error))
        except Exception as error:
            logger.exception("response %s has failed", self.id)
            return self._failed(ServingError(UNFORESEEN), type(error).__name__)

    def _failed(self, error: ServingError, why: str) -> list[Event]:
        if not len(self._record.log):
            self._refusal = error
            return []
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "server_error")
        return self._writer.fail(why, code)

    def _status(self) -> str:
        return "in_progress" if self._writer.has_begun else "queued"

    def _stop(self, is_cancelled: bool) -> None:
        if self._task is not None and not self._record.is_ending:
            self._is_cancelled = is_cancelled
            self._task.cancel()
