"""Memory of a turn: older messages that are relevant to its question, among those that the prompt leaves out."""

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
"""Messages that a turn is reminded of. More finds more; fewer leaves more of the budget to each message."""
TIMEOUT_S = 1.0
"""How long a turn waits for the index, in seconds. Shorter reminds fewer turns under load; longer delays their first
token.
"""


class Relevant(Protocol):
    """An index of messages."""

    async def relevant(
        self, tenant: str, conversation: str, text: str, limit: int, before_item: str | None = None
    ) -> list[str]:
        """Ids of messages of the conversation that are relevant to the text, the best first. Raises ServingError."""
        ...


class MemoryRecall:
    def __init__(self, index: Callable[[], Relevant], counter: TokenCounter) -> None:
        """`index`: returns the index, or raises StateUnavailable while PostgreSQL was not reached."""
        self._index = index
        self._counter = counter

    async def memory(
        self, tenant: str, conversation: str, asked: Sequence[Item], draft: Draft, budget: int
    ) -> Memory | None:
        """The memory for the newest question in `asked`, the turn's own items. `budget`: the most tokens of the
        memory. None if no message that is left out is relevant.
        """
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
            logger.warning("a turn is reminded of nothing: %s", error or "the index has not answered in time")
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
