"""Which connections are open, from where, and which of them may go when there are too many. Pure bookkeeping."""

from collections import Counter
from typing import Generic, TypeVar

C = TypeVar("C")


class Connections(Generic[C]):
    def __init__(self, most: int, most_per_address: int) -> None:
        self.most = most
        self.most_per_address = most_per_address
        self.open: dict[C, str] = {}
        """And the address of each."""
        self._of_address: Counter[str] = Counter()
        self._idle: dict[C, None] = {}
        """Without a request that is being answered, the longest first."""

    def add(self, connection: C, address: str) -> bool:
        """False where it is one too many of its address. It is idle."""
        if self._of_address[address] >= self.most_per_address:
            return False
        self._of_address[address] += 1
        self.open[connection] = address
        self._idle[connection] = None
        return True

    def surplus(self) -> C | None:
        """What has to go: the connection that has been idle longest, which is the newest where no other is."""
        return next(iter(self._idle), None) if len(self.open) > self.most else None

    def is_busy(self, connection: C) -> None:
        self._idle.pop(connection, None)

    def is_idle(self, connection: C) -> None:
        if connection in self.open:
            self._idle.pop(connection, None)
            self._idle[connection] = None

    def remove(self, connection: C) -> None:
        """Again is no harm."""
        address = self.open.pop(connection, None)
        self._idle.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]
