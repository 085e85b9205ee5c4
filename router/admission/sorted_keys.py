"""SortedKeys: a set of keys in their order. To add a key, to remove one, and to count the keys before one take a small
part of the time that a pass over all keys would take. Pure.

The keys are in chunks of at most MOST_IN_CHUNK. A change moves the keys of one chunk only.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, final

MOST_IN_CHUNK: Final = 512
"""Keys of one chunk. Higher moves more keys for each change; lower passes over more chunks to count keys."""

Key = tuple[int, float, int]


@final
class SortedKeys:
    __slots__ = ("_chunks", "_lasts", "_num")

    def __init__(self) -> None:
        self._chunks: list[list[Key]] = []
        """No chunk is empty."""
        self._lasts: list[Key] = []
        """The last key of each chunk."""
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[Key]:
        for chunk in self._chunks:
            yield from chunk

    def first(self) -> Key | None:
        return self._chunks[0][0] if self._chunks else None

    def add(self, key: Key) -> None:
        """Add a key that is not there."""
        self._num += 1
        if not self._chunks:
            self._chunks.append([key])
            self._lasts.append(key)
            return
        at = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > MOST_IN_CHUNK:
            half = len(chunk) // 2
            self._chunks.insert(at + 1, chunk[half:])
            del chunk[half:]
            self._lasts.insert(at, chunk[-1])
            at += 1
        self._lasts[at] = self._chunks[at][-1]

    def remove(self, key: Key) -> None:
        """Remove a key that is there."""
        at = bisect_left(self._lasts, key)
        chunk = self._chunks[at]
        place = bisect_left(chunk, key)
        assert chunk[place] == key
        del chunk[place]
        self._num -= 1
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]

    def num_before(self, key: Key) -> int:
        """Keys that are less than a key, which need not be there."""
        at = bisect_left(self._lasts, key)
        num = 0
        for chunk in self._chunks[:at]:
            num += len(chunk)
        return num + (bisect_left(self._chunks[at], key) if at < len(self._chunks) else 0)

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each change."""
        keys = list(self)
        assert keys == sorted(set(keys))
        assert len(keys) == self._num
        assert self._lasts == [chunk[-1] for chunk in self._chunks]
        assert all(len(chunk) <= MOST_IN_CHUNK for chunk in self._chunks)
