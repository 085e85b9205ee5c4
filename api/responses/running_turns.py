"""The turns that are generated on this ingress replica."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from api.edge.capacity import Capacity, Units
from api.frontend.generation import Call
from api.responses.turn import Means, Turn
from api.state.lifecycle import ChatState
from api.state.postgres.stores.history import NOTHING
from api.state.postgres.stores.items import Item, refers, with_ids
from api.state.postgres.stores.responses import Admission, Admitted, Responses
from api.wire.responses.request import ResponseRequest, response_of
from cluster.errors import StateUnavailable, TooManyRequests

WITHDRAW_INTERVAL_S = 1.0
WITHDRAWALS = 20
"""Then its lease has run out."""
BACKGROUND_RETRY_AFTER_S = 10.0
"""A response takes seconds to minutes."""

Settle = Callable[[asyncio.Future[Turn]], None]


class RunningTurns:
    def __init__(self, means: Means, state: ChatState, background: Capacity) -> None:
        """`background`: of responses that nobody waits for."""
        self._means = means
        self._state = state
        self._background = background
        self._running: dict[tuple[str, str], Turn] = {}
        """Those that are kept, by tenant and id."""
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
        """The user's turn is durable when this returns, if it is to be stored. `tenant`: as the state knows it;
        `response`: the id that it gets; `units`: what the HTTP request holds, which the turn holds as long as it
        goes on; `settle`: called when it is known whether there will be a turn, whether or not its client is still
        there.

        Raises:
            NotFound, Conflict: of the conversation, the previous response, or an item that the input refers to.
            StateUnavailable: it needs what is remembered.
            TooManyRequests: it is in the background, where enough are.
        """
        held = self._in_background(tenant) if request.is_background else units.share()
        starting = asyncio.create_task(self._start(tenant, request, call, response))  # all of it, or nothing
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
        """A turn that is kept, and generated here."""
        return self._running.get((tenant, response))

    async def drained(self) -> None:
        """Wait for the turns whose clients have left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _in_background(self, tenant: str) -> Units:
        """Raises TooManyRequests."""
        held = self._background.acquire(1, tenant)
        if held is None:
            raise TooManyRequests(
                f"{self._background.num_held} responses run in the background of this ingress replica, "
                f"{self._background.of_tenant(tenant)} of them yours: at most {self._background.most} may, and "
                f"{self._background.most_per_tenant} of one API key",
                BACKGROUND_RETRY_AFTER_S,
            )
        return held

    async def _start(self, tenant: str, request: ResponseRequest, call: Call, response_id: str) -> Turn:
        response = response_of(request, response_id, int(time.time()))
        items = await input_of(self._state, tenant, request)
        turn = Turn(tenant, request, response, self._state.log_space)
        history = NOTHING
        if request.is_stored:
            store = self._state.stores.responses
            asked = {name: value for name, value in request.body.items() if name != "input"}
            admission = Admission(response, items, request.conversation, request.previous, request.replaced, asked)
            history, key = await self._admitted(store, tenant, admission)
            turn.keep(store, self._state.stores.log_writer, key)
            self._running[tenant, turn.id] = turn
        elif request.conversation or request.previous:
            history = await self._state.stores.responses.history(tenant, request.conversation, request.previous)
        task = turn.start(self._means, history, items, call)
        task.add_done_callback(lambda _: self._running.pop((tenant, turn.id), None))
        self._keep(task)
        return turn

    async def _admitted(self, store: Responses, tenant: str, admission: Admission) -> Admitted:
        """Raises NotFound, Conflict, StateUnavailable."""
        try:
            if admission.conversation is None or admission.replaced is None:
                return await store.admit(tenant, admission)
            async with self._state.cache.forgetting(tenant, admission.conversation):  # of which a part is replaced
                return await store.admit(tenant, admission)
        except StateUnavailable:
            self._keep(asyncio.create_task(self._withdrawn(store, tenant, admission.created["id"])))
            raise

    async def _withdrawn(self, store: Responses, tenant: str, response: str) -> None:
        """It may have been admitted, though nobody has said so: its client will send it again."""
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
    """With ids, and with what it refers to. Raises NotFound, InvalidRequest, StateUnavailable."""
    items = request.items
    return with_ids(await state.stores.responses.referred(tenant, items) if refers(items) else items)


def _leave(starting: "asyncio.Task[Turn]") -> None:
    """The client of a turn has left while it was admitted."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().leave()


def _release_after(starting: "asyncio.Task[Turn]", held: Units) -> None:
    """Its turn is over, or there will be none."""
    if starting.cancelled() or starting.exception() is not None:
        held.release()
    else:
        starting.result().when_over(held.release)
