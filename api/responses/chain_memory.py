"""What the WebSocket connections of a replica remember of their latest responses with `store: false`.

A connection remembers one chain, as JSON, so that its bytes are its memory. A chain that is too large is forgotten, and
its client sends the whole input again. A long chain is decoded in parts, because a short message is enough to have it
decoded.
"""

import asyncio
from typing import Any

import msgspec

from api.wire.responses.socket_messages import ResponseChain
from cluster.config.ingress import WebSocketConfig

MOST_ITEMS = 10_000
"""Items of a chain that is remembered, in number: as many as a stored chain may have (`state.max_conversation_items`).
More lets short messages cost more CPU time; fewer makes clients send long conversations again.
"""
PART_ITEMS = 256
"""Items that are decoded at a time, in number: short ones take 1 ms. More keeps the event loop from other requests for
longer; fewer takes more steps.
"""


class ChainSpace:
    """The memory that all connections have for their chains."""

    def __init__(self, config: WebSocketConfig) -> None:
        self.most_each = config.max_remembered_bytes
        self._most = config.max_all_remembered_bytes
        self.num_held = 0

    def take(self, number: int) -> bool:
        """False, and takes nothing, if fewer bytes are free."""
        if self.num_held + number > self._most:
            return False
        self.num_held += number
        return True

    def give_back(self, number: int) -> None:
        self.num_held -= number


class ChainMemory:
    """What one connection remembers."""

    def __init__(self, space: ChainSpace) -> None:
        self._space = space
        self._response: str | None = None
        self._base: str | None = None
        self._parts: list[bytes] = []
        """The items, encoded."""

    def num_bytes_of(self, response: str | None) -> int:
        """Bytes of the chain that ends with this response. 0 if it is not remembered."""
        return sum(map(len, self._parts)) if response is not None and response == self._response else 0

    async def chain_of(self, response: str | None) -> ResponseChain | None:
        """The chain that ends with this response. None if it is not remembered."""
        if response is None or response != self._response:
            return None
        base, items = self._base, list[dict[str, Any]]()
        for part in list(self._parts):
            items += msgspec.json.decode(part, type=list[dict[str, Any]])
            await asyncio.sleep(0)
        return ResponseChain(response, base, items)

    def remember(self, chain: ResponseChain) -> None:
        """Remember this chain instead of the one so far. A chain that is too large is not remembered."""
        self.clear()
        if len(chain.items) > MOST_ITEMS:
            return
        starts = range(0, max(1, len(chain.items)), PART_ITEMS)
        parts = [msgspec.json.encode(chain.items[start : start + PART_ITEMS]) for start in starts]
        number = sum(map(len, parts))
        if number <= self._space.most_each and self._space.take(number):
            self._response, self._base, self._parts = chain.response, chain.base, parts

    def forget(self, response: str | None) -> None:
        """Forget the chain that ends with this response, because a turn that follows it has failed."""
        if self.num_bytes_of(response):
            self.clear()

    def clear(self) -> None:
        self._space.give_back(sum(map(len, self._parts)))
        self._response, self._base, self._parts = None, None, []
