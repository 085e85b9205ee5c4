"""What workers will cache soon, because a prompt has been placed there, until their KV events say so.

The hash of a block is chained over all blocks before it, so one that is predicted says that the whole prefix up to it
will be there. Marks on some blocks are therefore enough: on the first DENSE_BLOCKS, then on every STRIDE_BLOCKS-th, and
on the last. A prefix is found too short by less than a stride, and a prompt of 32k tokens costs some hundred marks.

A mark goes when its worker says anything of that block, and PREDICTION_TTL_S after the first placement that made it.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from cluster.types import WorkerId

PREDICTION_TTL_S = 10.0
"""A prompt is computed, or at least begun, by then. Longer keeps more of what was aborted, or went elsewhere; shorter
sends the copies of a prompt that waits in a queue to other workers.
"""
DENSE_BLOCKS = 64
STRIDE_BLOCKS = 16
MAX_MARKS = 1 << 20
"""The oldest go beyond that. Some thousand placements a second make so many."""
MAX_GROUPS = 4096


class _Placed(NamedTuple):
    until: float
    bit: int
    marks: list[bytes]
    """That were not there before: only this placement's end ends them."""


class Predictions:
    __slots__ = (
        "_bits",
        "_free",
        "_groups",
        "_marks",
        "_now",
        "_num_marks",
        "_placed",
        "_retired",
        "_workers",
        "max_marks",
    )

    def __init__(self, max_marks: int = MAX_MARKS) -> None:
        self.max_marks = max_marks
        self._marks: dict[bytes, int] = {}
        """By block hash, a bit per worker."""
        self._placed: deque[_Placed] = deque()
        """Oldest first."""
        self._num_marks = 0
        """Of all placements."""
        self._bits: dict[WorkerId, int] = {}
        self._workers: dict[int, WorkerId] = {}
        self._retired: deque[tuple[float, int]] = deque()
        """Bits of forgotten workers, and when the last of their marks is gone."""
        self._groups: dict[int, Sequence[WorkerId]] = {}
        """By the bits of their members."""
        self._free: list[int] = []
        self._now = 0.0

    def add(self, worker: WorkerId, block_hashes: Sequence[bytes], now: float) -> None:
        """A prompt was placed on a worker."""
        self._expire(now)
        bit = self._bits.get(worker) or self._add(worker)
        marks = self._marks
        news = []
        for block in _marked(block_hashes):
            mask = marks.get(block, 0)
            if not mask & bit:
                marks[block] = mask | bit
                news.append(block)
        if news:
            self._placed.append(_Placed(now + PREDICTION_TTL_S, bit, news))
            self._num_marks += len(news)

    def heard(self, worker: WorkerId, block_hashes: Sequence[bytes], now: float) -> None:
        """The worker has said what became of these blocks."""
        self._expire(now)
        bit = self._bits.get(worker)
        if bit is not None:
            self._clear(bit, list(self._marks.keys() & block_hashes))

    def forget(self, worker: WorkerId) -> None:
        bit = self._bits.pop(worker, None)
        if bit is not None:
            del self._workers[bit]
            self._groups.clear()
            self._retired.append((self._now + PREDICTION_TTL_S, bit))

    def longest(self, block_hashes: Sequence[bytes], now: float) -> list[tuple[int, Sequence[WorkerId]]]:
        """How many leading blocks of a prompt which workers will hold, most first; a worker that will hold none is
        absent.
        """
        self._expire(now)
        found: list[tuple[int, Sequence[WorkerId]]] = []
        if not self._marks:
            return found
        get, seen = self._marks.get, 0
        for depth in reversed(_depths(len(block_hashes))):
            mask = get(block_hashes[depth - 1])
            if mask is not None and (news := mask & ~seen):
                seen |= news
                found.append((depth, self._workers_of(news)))
        return found

    def validate(self) -> None:
        """Assert every invariant."""
        assert self._num_marks == sum(len(placed.marks) for placed in self._placed)
        assert [placed.until for placed in self._placed] == sorted(placed.until for placed in self._placed)
        assert self._bits == {worker: bit for bit, worker in self._workers.items()}
        bits = [*self._workers, *self._free, *(bit for _, bit in self._retired)]
        assert sorted(bits) == [1 << number for number in range(len(bits))]
        placed_bits = {(placed.bit, mark) for placed in self._placed for mark in placed.marks}
        for mark, mask in self._marks.items():
            assert mask
            assert all((bit, mark) in placed_bits for bit in bits if mask & bit)

    def _workers_of(self, mask: int) -> Sequence[WorkerId]:
        group = self._groups.get(mask)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._groups.clear()
            group = self._groups[mask] = [worker for bit, worker in self._workers.items() if mask & bit]
        return group

    def _add(self, worker: WorkerId) -> int:
        bit = self._free.pop() if self._free else 1 << len(self._bits) + len(self._retired)
        self._bits[worker], self._workers[bit] = bit, worker
        self._groups.clear()
        return bit

    def _expire(self, now: float) -> None:
        self._now = now
        while self._placed and (self._placed[0].until <= now or self._num_marks > self.max_marks):
            placed = self._placed.popleft()
            self._num_marks -= len(placed.marks)
            self._clear(placed.bit, placed.marks)
        while self._retired and self._retired[0][0] <= now:
            self._free.append(self._retired.popleft()[1])

    def _clear(self, bit: int, blocks: list[bytes]) -> None:
        marks = self._marks
        for block in blocks:
            mask = marks.get(block, 0)
            if mask & bit:
                if mask == bit:
                    del marks[block]
                else:
                    marks[block] = mask ^ bit


def _marked(block_hashes: Sequence[bytes]) -> Sequence[bytes]:
    if len(block_hashes) <= DENSE_BLOCKS:
        return block_hashes
    return [block_hashes[depth - 1] for depth in _depths(len(block_hashes))]


def _depths(num_blocks: int) -> Sequence[int]:
    """Of a prompt's marks, in blocks from its start, ascending."""
    if num_blocks <= DENSE_BLOCKS:
        return range(1, num_blocks + 1)
    sparse = range(DENSE_BLOCKS + STRIDE_BLOCKS, num_blocks, STRIDE_BLOCKS)
    return [*range(1, DENSE_BLOCKS + 1), *sparse, num_blocks]
