"""The open connections of a listener by address, and the one that is closed if there are too many."""

from collections import Counter
from typing import Generic, TypeVar

C = TypeVar("C")


class Connections(Generic[C]):
    def __init__(self, most: int, most_per_address: int) -> None:
        self.most = most
        self.most_per_address = most_per_address
        self.open: dict[C, str] = {}
        """The open connections, and the address of each."""
        self._of_address: Counter[str] = Counter()
        self._idle: dict[C, None] = {}
        """Connections without a request that is being answered. The one that has been idle longest is first."""

    def add(self, connection: C, address: str) -> bool:
        """Adds a connection, as an idle one. False, and not added, if its address has too many connections."""
        if self._of_address[address] >= self.most_per_address:
            return False
        self._of_address[address] += 1
        self.open[connection] = address
        self._idle[connection] = None
        return True

    def surplus(self) -> C | None:
        """The connection to close: the one that has been idle longest, if there are too many connections. That is the
        newest connection if all older ones are busy.
        """
        return next(iter(self._idle), None) if len(self.open) > self.most else None

    def is_busy(self, connection: C) -> None:
        self._idle.pop(connection, None)

    def is_idle(self, connection: C) -> None:
        if connection in self.open:
            self._idle.pop(connection, None)
            self._idle[connection] = None

    def remove(self, connection: C) -> None:
        """A second call for a connection has no effect."""
        address = self.open.pop(connection, None)
        self._idle.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]
