"""The turns that this ingress replica generates."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from api.edge.capacity import Capacity, Units
from api.frontend.generation import Call
from api.responses.turn import Turn
from api.responses.turn_generation import TurnServices
from api.state.lifecycle import ChatState
from api.state.postgres.stores.history import NOTHING
from api.state.postgres.stores.items import Item, refers, with_ids
from api.state.postgres.stores.responses import Admission, Admitted, Responses
from api.wire.responses.request import ResponseRequest, response_of
from cluster.errors import StateUnavailable, TooManyRequests

WITHDRAW_INTERVAL_S = 1.0
"""The time between two tries to withdraw a turn, in seconds. Shorter costs more CPU while PostgreSQL is away; longer
keeps the conversation locked for longer when it is back.
"""
WITHDRAWALS = 20
"""Tries to withdraw a turn: after them its generation claim has run out, and a job ends it. Fewer shows the client a
failed response in its conversation; more is of no use.
"""
BACKGROUND_RETRY_AFTER_S = 10.0
"""The Retry-After while too many responses run in the background, in seconds: a response takes seconds to minutes.
Shorter brings more requests that are refused again; longer leaves room unused.
"""

Settle = Callable[[asyncio.Future[Turn]], None]


class RunningTurns:
    def __init__(self, services: TurnServices, state: ChatState, background: Capacity) -> None:
        """`background`: bounds the responses that run in the background."""
        self._services = services
        self._state = state
        self._background = background
        self._running: dict[tuple[str, str], Turn] = {}
        """The stored turns, by tenant and response."""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(
        self,
        tenant: str,
        request: ResponseRequest,
        call: Call,
        response: str,
        units: Units,
        settle: Settle | None = None,
    ) -> Turn:
        """Start a turn. If it is to be stored, its input is stored when this returns. `tenant`: the tenant's name in
        the state. `response`: the id of the new response. `units`: the capacity that the HTTP request holds; the turn
        holds it until it is over. `settle`: called when the turn is admitted or refused, even if its client has left.

        Raises:
            NotFound, Conflict: the conversation, the previous response or a referenced item is gone or busy.
            StateUnavailable: PostgreSQL is away, and the turn needs it.
            TooManyRequests: too many responses run in the background.
        """
        held = self._in_background(tenant) if request.is_background else units.share()
        starting = asyncio.create_task(self._start(tenant, request, call, response))  # not cancelled half-way
        starting.add_done_callback(lambda started: _release_after(started, held))
        self._keep(starting)
        if settle is not None:
            starting.add_done_callback(settle)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_leave)
            raise

    def running(self, tenant: str, response: str) -> Turn | None:
        """A stored turn that this replica generates. None if there is none."""
        return self._running.get((tenant, response))

    async def drained(self, patience_s: float) -> None:
        """Wait for the turns whose clients have left, and those in the background. Those that still run after
        `patience_s` are ended, and stored as far as they got.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._all_over()
        for turn in list(self._running.values()):
            turn.end()
        await self._all_over()

    async def _all_over(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _in_background(self, tenant: str) -> Units:
        """Raises TooManyRequests."""
        held = self._background.acquire(1, tenant)
        if held is None:
            raise TooManyRequests(
                f"{self._background.num_held} responses run in the background of this ingress replica, "
                f"{self._background.of_tenant(tenant)} of them of this tenant: at most {self._background.most} may "
                f"run at a time, and {self._background.most_per_tenant} of one tenant",
                BACKGROUND_RETRY_AFTER_S,
            )
        return held

    async def _start(self, tenant: str, request: ResponseRequest, call: Call, response_id: str) -> Turn:
        response = response_of(request, response_id, int(time.time()), call.terms.slo_class)
        items = await input_of(self._state, tenant, request)
        turn = Turn(tenant, request, response, self._state.log_space)
        history = NOTHING
        if request.is_stored:
            store = self._state.stores.responses
            asked = {name: value for name, value in request.body.items() if name != "input"}
            admission = Admission(response, items, request.conversation, request.previous, request.replaced, asked)
            history, key = await self._admitted(store, tenant, admission)
            turn.keep(store, self._state.stores.event_writer, key)
            self._running[tenant, turn.id] = turn
        elif request.conversation or request.previous:
            history = await self._state.stores.responses.history(tenant, request.conversation, request.previous)
        if request.followed:
            history = history._replace(items=[*history.items, *request.followed])
        task = turn.start(self._services, history, items, call)
        task.add_done_callback(lambda _: self._running.pop((tenant, turn.id), None))
        self._keep(task)
        return turn

    async def _admitted(self, store: Responses, tenant: str, admission: Admission) -> Admitted:
        """Raises NotFound, Conflict, StateUnavailable."""
        try:
            if admission.conversation is None or admission.replaced is None:
                return await store.admit(tenant, admission)
            async with self._state.cache.forgetting(tenant, admission.conversation):  # it loses the replaced items
                return await store.admit(tenant, admission)
        except StateUnavailable:
            self._keep(asyncio.create_task(self._withdrawn(store, tenant, admission.created["id"])))
            raise

    async def _withdrawn(self, store: Responses, tenant: str, response: str) -> None:
        """Undo an admission whose outcome is unknown, because PostgreSQL went away: the client will send the request
        again.
        """
        for _ in range(WITHDRAWALS):
            try:
                await store.withdraw(tenant, response)
                return
            except StateUnavailable:
                await asyncio.sleep(WITHDRAW_INTERVAL_S)

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def input_of(state: ChatState, tenant: str, request: ResponseRequest) -> list[Item]:
    """The input of a request with ids, and with each reference replaced by the stored item. Raises NotFound,
    InvalidRequest, StateUnavailable.
    """
    items = request.items
    return with_ids(await state.stores.responses.referred(tenant, items) if refers(items) else items)


def _leave(starting: "asyncio.Task[Turn]") -> None:
    """Leave a turn whose client left while the turn was admitted."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().leave()


def _release_after(starting: "asyncio.Task[Turn]", held: Units) -> None:
    """Release capacity when the turn is over, or at once if the turn was not admitted."""
    if starting.cancelled() or starting.exception() is not None:
        held.release()
    else:
        starting.result().when_over(held.release)
