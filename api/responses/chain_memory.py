"""What the WebSocket connections of a replica remember of their latest responses with `store: false`.

A connection remembers one chain, as JSON, so that its bytes are its memory. A chain that is too large is forgotten, and
its client sends the whole input again. A short message is enough to have a chain decoded. So a chain has the bounds of
a body, and a large one is packed and unpacked in a thread (`checked` in api/server/json_body.py).
"""

from collections import Counter
from typing import Any, NamedTuple

import msgspec

from api.server.json_body import LARGE_BYTES, MANY_VALUES
from api.wire.limits.structure import check_structure
from api.wire.responses.socket_messages import ResponseChain
from cluster.config.ingress import WebSocketConfig
from cluster.errors import InvalidRequest

MOST_ITEMS = 10_000
"""Items of a chain that is remembered, in number: as many as a stored chain may have (`state.max_conversation_items`).
More lets short messages cost more CPU time; fewer makes clients send long conversations again.
"""


class PackedChain(NamedTuple):
    """A chain as JSON."""

    response: str
    base: str | None
    items: bytes
    num_values: int
    """JSON values in `items`."""

    @property
    def is_large(self) -> bool:
        """Whether a thread unpacks it."""
        return len(self.items) > LARGE_BYTES or self.num_values > MANY_VALUES

    def unpacked(self) -> ResponseChain:
        return ResponseChain(self.response, self.base, msgspec.json.decode(self.items, type=list[dict[str, Any]]))


def packed(chain: ResponseChain) -> PackedChain | None:
    """None for a chain with more items than MOST_ITEMS, or with more JSON values than a body may have."""
    if len(chain.items) > MOST_ITEMS:
        return None
    items = msgspec.json.encode(chain.items)
    try:
        return PackedChain(chain.response, chain.base, items, check_structure(items).values)
    except InvalidRequest:
        return None


class ChainSpace:
    """The memory that all connections have for their chains. A tenant may hold half of it."""

    def __init__(self, config: WebSocketConfig) -> None:
        self.most_each = config.max_remembered_bytes
        self._most = config.max_all_remembered_bytes
        self._held = Counter[str]()
        """Bytes, by tenant."""

    @property
    def num_held(self) -> int:
        return self._held.total()

    def take(self, tenant: str, number: int) -> bool:
        """False, and takes nothing, if fewer bytes are free for this tenant."""
        if self._held[tenant] + number > self._most // 2 or self.num_held + number > self._most:
            return False
        self._held[tenant] += number
        return True

    def give_back(self, tenant: str, number: int) -> None:
        self._held[tenant] -= number
        if not self._held[tenant]:
            del self._held[tenant]


class ChainMemory:
    """What one connection remembers."""

    def __init__(self, space: ChainSpace, tenant: str) -> None:
        self._space = space
        self._tenant = tenant
        self._chain: PackedChain | None = None

    def num_bytes_of(self, response: str | None) -> int:
        """Bytes of the chain that ends with this response. 0 if it is not remembered."""
        chain = self.chain_of(response)
        return 0 if chain is None else len(chain.items)

    def chain_of(self, response: str | None) -> PackedChain | None:
        """The chain that ends with this response. None if it is not remembered."""
        return self._chain if self._chain is not None and self._chain.response == response else None

    def remember(self, chain: PackedChain | None) -> None:
        """Remember this chain instead of the one so far. A chain that is too large is not remembered."""
        self.clear()
        if chain is None or len(chain.items) > self._space.most_each:
            return
        if self._space.take(self._tenant, len(chain.items)):
            self._chain = chain

    def forget(self, response: str | None) -> None:
        """Forget the chain that ends with this response, because a turn that follows it has failed."""
        if self.chain_of(response) is not None:
            self.clear()

    def clear(self) -> None:
        if self._chain is not None:
            self._space.give_back(self._tenant, len(self._chain.items))
            self._chain = None
