"""What workers will cache soon, because a prompt has been placed there, until their KV events say so.

The hash of a block is chained over all blocks before it, so one that is predicted says that the whole prefix up to it
will be there. Marks on some blocks are therefore enough: on the first DENSE_BLOCKS, then on every STRIDE_BLOCKS-th, and
on the last. A prefix is found too short by less than a stride, and a prompt of 32k tokens costs some hundred marks.

A mark goes when its worker says anything of that block, and PREDICTION_TTL_S after the first placement that made it.

Neighbours mostly have the marks of the same workers, so everything works on runs of blocks with equal masks.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, final

from router.prefixes.runs import DENSE_BLOCKS, STRIDE_BLOCKS, runs
from router.prefixes.worker_bits import WorkerBits

PREDICTION_TTL_S: Final = 10.0
"""A prompt is computed, or at least begun, by then. Longer keeps more of what was aborted, or went elsewhere; shorter
sends the copies of a prompt that waits in a queue to other workers.
"""
MAX_MARKS: Final = 1 << 20
"""The oldest go beyond that. Some thousand placements a second make so many."""


class _Placed(NamedTuple):
    until: float
    bit: int
    marks: list[bytes]
    """That were not there before: only this placement's end ends them."""


@final
class ExpectedBlocks:
    __slots__ = ("_bits", "_marks", "_now", "_num_marks", "_placed", "_retired", "max_marks")

    def __init__(self, bits: WorkerBits, max_marks: int = MAX_MARKS) -> None:
        self.max_marks = max_marks
        self._bits = bits
        self._marks: dict[bytes, int] = {}
        """By block hash, a bit per worker."""
        self._placed: deque[_Placed] = deque()
        """Oldest first."""
        self._num_marks = 0
        """Of all placements."""
        self._retired: deque[tuple[float, int]] = deque()
        """Bits of forgotten workers, and when the last of their marks is gone."""
        self._now = 0.0

    def add(self, bit: int, block_hashes: Sequence[bytes], now: float) -> None:
        """A prompt was placed on the worker with this bit."""
        self._expire(now)
        marks, news = self._marks, list[bytes]()
        marked = _marked(block_hashes)
        for mask, start, end in runs(marks, marked):
            if not mask & bit:
                part = marked[start:end]
                marks.update(dict.fromkeys(part, mask | bit))
                news += part
        if news:
            self._placed.append(_Placed(now + PREDICTION_TTL_S, bit, news))
            self._num_marks += len(news)

    def heard(self, bit: int, block_hashes: Iterable[bytes], now: float) -> None:
        """The worker has said what became of these blocks."""
        self._expire(now)
        if self._marks:
            self._clear(bit, list(filter(self._marks.__contains__, block_hashes)))

    def retire(self, bit: int) -> None:
        """The worker is gone. Its bit is released when no mark has it any more."""
        self._retired.append((self._now + PREDICTION_TTL_S, bit))

    def longest(self, block_hashes: Sequence[bytes], now: float) -> list[tuple[int, int]]:
        """How many leading blocks of a prompt which workers will hold, most first; a worker that will hold none is
        absent.
        """
        self._expire(now)
        found: list[tuple[int, int]] = []
        if not self._marks:
            return found
        marked = _marked(block_hashes)[::-1]
        seen = 0
        for mask, start, _ in runs(self._marks, marked):
            if news := mask & ~seen:
                seen |= news
                found.append((_depth(len(marked) - start, len(block_hashes)), news))
        return found

    def validate(self) -> None:
        """Assert every invariant."""
        assert self._num_marks == sum(len(placed.marks) for placed in self._placed)
        assert [placed.until for placed in self._placed] == sorted(placed.until for placed in self._placed)
        self._bits.validate([bit for _, bit in self._retired])
        placed_bits = {(placed.bit, mark) for placed in self._placed for mark in placed.marks}
        bits = {placed.bit for placed in self._placed}
        for mark, mask in self._marks.items():
            assert mask and not mask & ~sum(bits)
            assert all((bit, mark) in placed_bits for bit in bits if mask & bit)

    def _expire(self, now: float) -> None:
        self._now = now
        while self._placed and (self._placed[0].until <= now or self._num_marks > self.max_marks):
            placed = self._placed.popleft()
            self._num_marks -= len(placed.marks)
            self._clear(placed.bit, placed.marks)
        while self._retired and self._retired[0][0] <= now:
            self._bits.release(self._retired.popleft()[1])

    def _clear(self, bit: int, blocks: list[bytes]) -> None:
        marks = self._marks
        for mask, start, end in runs(marks, blocks):
            if mask == bit:
                for block in blocks[start:end]:
                    marks.pop(block, None)
            elif mask & bit:
                marks.update(dict.fromkeys(blocks[start:end], mask ^ bit))


def _marked(block_hashes: Sequence[bytes]) -> Sequence[bytes]:
    """The blocks of a prompt that have its marks, from its start."""
    if len(block_hashes) <= DENSE_BLOCKS:
        return block_hashes
    first = DENSE_BLOCKS + STRIDE_BLOCKS - 1
    return [*block_hashes[:DENSE_BLOCKS], *block_hashes[first:-1:STRIDE_BLOCKS], block_hashes[-1]]


def _depth(number: int, num_blocks: int) -> int:
    """Of the `number`th mark of a prompt, in blocks from its start."""
    if number <= DENSE_BLOCKS:
        return number
    return min(num_blocks, DENSE_BLOCKS + (number - DENSE_BLOCKS) * STRIDE_BLOCKS)
