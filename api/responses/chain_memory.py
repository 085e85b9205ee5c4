"""What the WebSocket connections of a replica remember of their latest responses with `store: false`.

A connection remembers one chain, as JSON, so that its bytes are its memory. A chain that is too large is forgotten, and
its client sends the whole input again.
"""

import msgspec

from api.wire.responses.socket_messages import ResponseChain
from cluster.config.ingress import WebSocketConfig


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
        self._encoded = b""

    def num_bytes_of(self, response: str | None) -> int:
        """Bytes of the chain that ends with this response. 0 if it is not remembered."""
        return len(self._encoded) if response is not None and response == self._response else 0

    def chain_of(self, response: str | None) -> ResponseChain | None:
        """The chain that ends with this response. None if it is not remembered."""
        return msgspec.json.decode(self._encoded, type=ResponseChain) if self.num_bytes_of(response) else None

    def remember(self, chain: ResponseChain) -> None:
        """Remember this chain instead of the one so far. A chain that is too large is not remembered."""
        self.clear()
        encoded = msgspec.json.encode(chain)
        if len(encoded) <= self._space.most_each and self._space.take(len(encoded)):
            self._response, self._encoded = chain.response, encoded

    def forget(self, response: str | None) -> None:
        """Forget the chain that ends with this response, because a turn that follows it has failed."""
        if self.num_bytes_of(response):
            self.clear()

    def clear(self) -> None:
        self._space.give_back(len(self._encoded))
        self._response, self._encoded = None, b""
