"""What a turn is reminded of: older messages that have to do with its question."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from api.context.draft import Draft, Memory
from api.context.prompt_notes import memory_note, text_of
from api.context.token_counter import TokenCounter
from api.context.turn_boundaries import Item
from cluster.errors import ServingError

logger = logging.getLogger("baton.context")

MAX_MEMORIES = 8
TIMEOUT_S = 1.0
"""An answer is not worth waiting for longer."""


class Relevant(Protocol):
    """An index of what was said."""

    async def relevant(
        self, tenant: str, conversation: str, text: str, limit: int, before_item: str | None = None
    ) -> list[str]:
        """Messages of the conversation that have to do with the text, the best first: their ids. Raises
        ServingError.
        """
        ...


class MemoryRecall:
    def __init__(self, index: Callable[[], Relevant], counter: TokenCounter) -> None:
        """`index`: raises StateUnavailable while it cannot be reached."""
        self._index = index
        self._counter = counter

    async def memory(
        self, tenant: str, conversation: str, asked: Sequence[Item], draft: Draft, budget: int
    ) -> Memory | None:
        """Of the messages that are left out, for the newest of those that are asked. `budget`: in tokens."""
        question = next(
            (item for item in reversed(asked) if item["type"] == "message" and item["role"] == "user"), None
        )
        messages = {
            item["id"]: item for item in draft.leaves_out if item["type"] == "message" and text_of(item).strip()
        }
        if question is None or not messages or not (text := text_of(question).strip()):
            return None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                first = draft.items[draft.cut]["id"]
                best = await self._index().relevant(tenant, conversation, text, MAX_MEMORIES, first)
        except (ServingError, TimeoutError) as error:
            logger.warning("nothing was looked up for a turn: %s", error or "no answer in time")
            return None
        found = [messages[item] for item in best if item in messages]
        counts = await self._counter.texts([memory_note([item]) for item in found])
        chosen, used = set(), 0
        for item, tokens in zip(found, counts, strict=True):
            if used + tokens <= budget:
                chosen.add(item["id"])
                used += tokens
        in_order = [item for item in messages.values() if item["id"] in chosen]
        return Memory(question["id"], in_order) if in_order else None
