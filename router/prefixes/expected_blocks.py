"""Expected blocks: KV blocks that workers will have soon, because a prompt was placed there. KV events replace them.

The hash of a block is chained over all blocks before it. So an expected block means that the whole prefix up to it is
expected, and marks on some blocks are enough: on the first DENSE_BLOCKS, then on every STRIDE_BLOCKS-th block, and on
the last block. A prefix is found too short by less than a stride. A prompt of 32k tokens costs some hundred marks.

A mark ends when a KV event of its worker names the block, and at the latest PREDICTION_TTL_S after its placement.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, final

from router.prefixes.runs import DENSE_BLOCKS, STRIDE_BLOCKS, runs
from router.prefixes.worker_bits import WorkerBits

PREDICTION_TTL_S: Final = 10.0
"""Time for which blocks are expected, in seconds: within it most prompts are computed, or at least begun. Longer keeps
blocks of requests that were aborted or that run elsewhere; shorter sends copies of a prompt in a queue to other
workers.
"""
MAX_MARKS: Final = 1 << 20
"""Marks that are kept; the oldest go first. Some thousand placements per second make as many. More cost memory; fewer
end marks before their time.
"""


class _Placed(NamedTuple):
    until: float
    bit: int
    marks: list[bytes]
    """Marks that this placement made. They end with it, and not with later placements of the same prompt."""


@final
class ExpectedBlocks:
    __slots__ = ("_bits", "_marks", "_now", "_num_marks", "_placed", "_retired", "max_marks")

    def __init__(self, bits: WorkerBits, max_marks: int = MAX_MARKS) -> None:
        self.max_marks = max_marks
        self._bits = bits
        self._marks: dict[bytes, int] = {}
        """Bits of workers by block hash."""
        self._placed: deque[_Placed] = deque()
        """The oldest is first."""
        self._num_marks = 0
        """Marks in `_placed`."""
        self._retired: deque[tuple[float, int]] = deque()
        """Bits of workers that are gone, and times at which the last mark of each is gone."""
        self._now = 0.0

    def add(self, bit: int, block_hashes: Sequence[bytes], now: float) -> None:
        """A prompt was placed on the worker with this bit."""
        self._expire(now)
        marks, news = self._marks, list[bytes]()
        marked = _marked(block_hashes)
        if marks.keys().isdisjoint(marked):
            news += marked
            marks.update(dict.fromkeys(marked, bit))
        else:
            for mask, start, end in runs(marks, marked):
                if not mask & bit:
                    part = marked[start:end]
                    marks.update(dict.fromkeys(part, mask | bit))
                    news += part
        if news:
            self._placed.append(_Placed(now + PREDICTION_TTL_S, bit, news))
            self._num_marks += len(news)

    def end_marks(self, bit: int, block_hashes: Iterable[bytes], now: float) -> None:
        """A KV event of the worker has named these blocks."""
        self._expire(now)
        if self._marks:
            self._clear(bit, list(filter(self._marks.__contains__, block_hashes)))

    def retire(self, bit: int) -> None:
        """The worker is gone. Its bit is released when no mark has the bit any more."""
        self._retired.append((self._now + PREDICTION_TTL_S, bit))

    def longest(self, block_hashes: Sequence[bytes], now: float) -> list[tuple[int, int]]:
        """Numbers of leading blocks of a prompt, each with the bits of the workers that will hold as many. The largest
        number is first. Workers that will hold no block are absent.
        """
        self._expire(now)
        found: list[tuple[int, int]] = []
        marked = _marked(block_hashes)[::-1]
        if self._marks.keys().isdisjoint(marked):
            return found
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
    """The blocks of a prompt that are marked, in order."""
    if len(block_hashes) <= DENSE_BLOCKS:
        return block_hashes
    first = DENSE_BLOCKS + STRIDE_BLOCKS - 1
    return [*block_hashes[:DENSE_BLOCKS], *block_hashes[first:-1:STRIDE_BLOCKS], block_hashes[-1]]


def _depth(number: int, num_blocks: int) -> int:
    """Number of blocks up to the `number`th mark of a prompt."""
    if number <= DENSE_BLOCKS:
        return number
    return min(num_blocks, DENSE_BLOCKS + (number - DENSE_BLOCKS) * STRIDE_BLOCKS)
