"""The memory that the bodies of all requests in progress take together. The module counts, and does not wait."""

from api.wire.errors import FULL_REPLICA_RETRY_S
from cluster.errors import Overloaded

FREE_BYTES = 64 << 10
"""Bytes of each share that are not counted. A chat of ordinary length has fewer, so that large uploads cannot keep
chats out. The body of an HTTP request has a share. A WebSocket has two: one for what arrives, and one for all messages
that wait or are answered. The limit on connections bounds these bytes, too: 4,096 connections take 256 MiB of them, and
512 MiB if all are WebSockets. Lower lets uploads keep out more chats; higher leaves more memory uncounted.
"""
BYTES_PER_VALUE = 64
"""Bytes of memory that a decoded JSON value takes beside its text. Measured were 60 for an empty list or object, 59 for
a short string, and 36 for a number. Lower counts too little memory; higher refuses bodies that there is memory for.
"""


class ByteBudget:
    def __init__(self, most: int) -> None:
        self.most = most
        self.num_held = 0

    def take(self, number: int) -> None:
        """Takes bytes from the budget. Raises Overloaded, and takes nothing, if fewer are free."""
        if self.num_held + number > self.most:
            raise Overloaded(
                "the bodies of requests in progress take all the memory for request bodies", FULL_REPLICA_RETRY_S
            )
        self.num_held += number

    def give_back(self, number: int) -> None:
        self.num_held -= number


class Share:
    """The bytes of the budget that one body takes, or all bodies of one connection. A body is counted until its request
    ends, because the objects that are made of the body live until then, too.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._num_bytes = 0
        self._num_counted = 0

    def add(self, number: int) -> None:
        """Counts more bytes. Raises Overloaded, and counts nothing, if too few are free."""
        counted = max(0, self._num_bytes + number - FREE_BYTES)
        self._budget.take(counted - self._num_counted)
        self._num_bytes += number
        self._num_counted = counted

    def give_back(self, number: int) -> None:
        """Counts fewer bytes."""
        self.add(-number)

    def hold(self, number: int) -> None:
        """Counts this many bytes in place of those counted so far. Raises Overloaded, and changes nothing, if too few
        are free.
        """
        self.add(number - self._num_bytes)

    def release(self) -> None:
        """Gives all bytes back. A second call has no effect."""
        self._budget.give_back(self._num_counted)
        self._num_bytes = self._num_counted = 0
