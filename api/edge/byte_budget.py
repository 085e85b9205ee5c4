"""How many bytes the bodies of all requests that are in progress take in memory. Arithmetic: nothing here waits."""

from cluster.errors import Overloaded

FREE_BYTES = 64 << 10
"""Of each body, which are not counted: those of a chat of ordinary length. Large uploads cannot keep it out.
Connections are limited, so that all of these together are too: 256 MiB for 4,096.
"""
BYTES_PER_VALUE = 64
"""What a JSON value takes beside its text. Measured: 60 for an empty list or object, 59 for a short string, 36 for a
number."""
RETRY_AFTER_S = 1.0


class ByteBudget:
    def __init__(self, most: int) -> None:
        self.most = most
        self.num_held = 0

    def take(self, number: int) -> None:
        """Raises Overloaded, and takes nothing, where so many are not free."""
        if self.num_held + number > self.most:
            raise Overloaded("the bodies of other requests take all the memory that there is for bodies", RETRY_AFTER_S)
        self.num_held += number

    def give_back(self, number: int) -> None:
        self.num_held -= number


class Share:
    """Of one body. It is held as long as the request is in progress: what is made of a body lives so long too."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._num_bytes = 0
        self._num_counted = 0

    def add(self, number: int) -> None:
        """Raises Overloaded."""
        counted = max(0, self._num_bytes + number - FREE_BYTES)
        self._budget.take(counted - self._num_counted)
        self._num_bytes += number
        self._num_counted = counted

    def add_values(self, number: int) -> None:
        """Raises Overloaded."""
        self.add(number * BYTES_PER_VALUE)

    def release(self) -> None:
        """Again is no harm."""
        self._budget.give_back(self._num_counted)
        self._num_bytes = self._num_counted = 0
