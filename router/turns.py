"""Turns: things that wait, of several owners who take turns. An owner that adds much delays its own things. Pure.

Invariant: exactly the owners of things that wait have a turn.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Turns(Generic[K, T]):
    def __init__(self) -> None:
        self._waiting: OrderedDict[K, deque[T]] = OrderedDict()
        """The owner whose turn is next is the first one. The things of an owner are in their order."""
        self._num = 0

    def __len__(self) -> int:
        """Things that wait."""
        return self._num

    def __contains__(self, owner: K) -> bool:
        """Whether things of the owner wait."""
        return owner in self._waiting

    def __iter__(self) -> Iterator[tuple[K, T]]:
        return ((owner, thing) for owner, things in self._waiting.items() for thing in things)

    def has_share(self, owner: K, most: int) -> bool:
        """Whether `most` things wait, and the owner has its share of them."""
        return self._num >= most and len(self._waiting.get(owner, ())) * len(self._waiting) >= most

    def add(self, owner: K, thing: T) -> None:
        self._waiting.setdefault(owner, deque()).append(thing)
        self._num += 1

    def take(self) -> tuple[K, T]:
        """The oldest thing of the owner whose turn it is. Raises StopIteration if nothing waits."""
        owner, things = next(iter(self._waiting.items()))
        thing = things.popleft()
        self._num -= 1
        if things:
            self._waiting.move_to_end(owner)
        else:
            del self._waiting[owner]
        return owner, thing

    def drop(self, owner: K) -> list[T]:
        """Nothing of the owner waits any more. Returns what did."""
        dropped = list(self._waiting.pop(owner, ()))
        self._num -= len(dropped)
        return dropped

    def validate(self) -> None:
        """Assert every invariant."""
        assert all(self._waiting.values())
        assert self._num == sum(map(len, self._waiting.values()))
