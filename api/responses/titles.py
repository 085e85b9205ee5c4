"""The model writes titles for conversations without one, in the background: late, or not at all under load."""

import asyncio
import logging

from api.frontend.frontend import Frontend
from api.frontend.generation import Call
from api.responses.title_text import first_messages, title_body, title_of
from api.state.lifecycle import ChatState
from api.wire.pages import Page
from cluster.errors import InvalidRequest, ServingError
from cluster.messages.ids import SloClass

logger = logging.getLogger("baton.titles")

MAX_TITLES = 4
"""Titles that a replica makes at a time, one of each tenant. A conversation that finds no room gets its title after a
later turn. More competes with turns for workers; fewer leaves more conversations without a title.
"""
TITLE_TIMEOUT_S = 60.0
"""How long making a title may take, in seconds. Shorter gives more titles up under load; longer keeps their places."""
NUM_FIRST_ITEMS = 20
"""The first items of a conversation, which are searched for the first question and the first answer. More reads more;
fewer misses the answer of a turn with many tool calls.
"""


class Titles:
    def __init__(self, frontend: Frontend, state: ChatState) -> None:
        self._frontend = frontend
        self._state = state
        self._making: dict[str, asyncio.Task[None]] = {}
        """The title that is being made for each tenant."""

    async def after_turn(self, tenant: str, conversation: str, call: Call) -> None:
        """Start a title after a turn that has succeeded, unless one is being made for the tenant or MAX_TITLES are. A
        failure is logged, and a later turn tries again. `call`: of the turn; its client is charged for the title.
        """
        if self._state.has_titles and tenant not in self._making and len(self._making) < MAX_TITLES:
            making = self._make(tenant, conversation, call.beside(SloClass.BATCH))
            task = self._making[tenant] = asyncio.create_task(making)
            task.add_done_callback(lambda _: self._making.pop(tenant))

    async def close(self) -> None:
        """Give up the titles that are being made."""
        for task in self._making.values():
            task.cancel()
        await self.drained()

    async def drained(self) -> None:
        """Wait for the titles that are being made."""
        if self._making:
            await asyncio.wait(self._making.values())

    async def _make(self, tenant: str, conversation: str, call: Call) -> None:
        try:
            async with asyncio.timeout(TITLE_TIMEOUT_S):
                await self._add(tenant, conversation, call)
        except (ServingError, TimeoutError) as error:
            logger.info("conversation %s has no title yet: %s", conversation, str(error) or type(error).__name__)
        except Exception:
            logger.exception("conversation %s has no title yet", conversation)

    async def _add(self, tenant: str, conversation: str, call: Call) -> None:
        """Raises ServingError."""
        store = self._state.stores.conversations
        if (await store.get(tenant, conversation)).title is not None:
            return
        first = await store.items(tenant, conversation, Page(None, NUM_FIRST_ITEMS, False))
        said = first_messages(first.data)
        if not said:
            return
        question, answer = (said[role][1] if role in said else "" for role in ("user", "assistant"))
        title = title_of(await self._written(call, question, answer), question)
        if title:
            await store.add_title(tenant, conversation, title, [item for item, _ in said.values()])

    async def _written(self, call: Call, question: str, answer: str) -> str:
        """The model's answer; empty if the model refuses the request. Raises ServingError."""
        models = await self._frontend.models()
        body = title_body(models[0]["id"], question, answer)
        try:
            completion = await self._frontend.chat_completion(body, call)
        except InvalidRequest:
            return ""
        assert isinstance(completion, dict)
        return "".join(choice["message"].get("content") or "" for choice in completion["choices"])
