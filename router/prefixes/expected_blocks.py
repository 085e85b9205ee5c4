"""Expected blocks: KV blocks that workers will have soon, because a prompt was placed there. KV events replace them.

The hash of a block is chained over all blocks before it. So an expected block means that the whole prefix up to it is
expected, and marks on some blocks are enough: on the first DENSE_BLOCKS, then on every STRIDE_BLOCKS-th block, and on
the last block. A prefix is found too short by less than a stride. A prompt of 32k tokens costs some hundred marks.

The marks are spread over many dictionaries by their keys: one of a million marks would stop the process for 30 ms
whenever it grows.

A mark ends when a KV event of its worker names the block, and at the latest PREDICTION_TTL_S after its placement.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
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
_MOST_EXPIRED: Final = 1024
"""Marks that end for their age in one call, with the placement that reaches it. More has one call take longer where all
placements of a busy time have expired, by 0.3 us for each mark; fewer expects their blocks for longer.
"""
_SHARDS: Final = 64
"""Dictionaries of marks, a power of two up to 256. More takes more memory where few blocks are expected; fewer makes
the longest pause longer.
"""
_LAST: Final = _SHARDS - 1
"""The bits of a hash's last byte that give the number."""


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
        self._marks: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        """Bits of workers by block hash. The last byte of a hash gives the number of its dictionary."""
        self._placed: deque[_Placed] = deque()
        """The oldest is first."""
        self._num_marks = 0
        """Marks in `_placed`."""
        self._retired: deque[tuple[float, int]] = deque()
        """Bits of workers that are gone, and times at which the last mark of each expires."""
        self._now = 0.0

    def add(self, bit: int, block_hashes: Sequence[bytes], now: float) -> None:
        """A prompt was placed on the worker with this bit."""
        self._expire(now)
        news = list[bytes]()
        marked = _marked(block_hashes)
        for mask, start, end in runs(self._masks(marked)):
            if not mask & bit:
                part = marked[start:end]
                self._set(part, mask | bit)
                news += part
        if news:
            self._placed.append(_Placed(now + PREDICTION_TTL_S, bit, news))
            self._num_marks += len(news)

    def end_marks(self, bit: int, block_hashes: Iterable[bytes], now: float) -> None:
        """A KV event of the worker has named these blocks."""
        self._expire(now)
        if self._placed:
            marks = self._marks
            self._clear(bit, [block for block in block_hashes if block in marks[block[-1] & _LAST]])

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
        seen = 0
        for mask, start, _ in runs(self._masks(marked)):
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
        for mark, mask in [entry for marks in self._marks for entry in marks.items()]:
            assert self._masks([mark]) == [mask]
            assert mask and not mask & ~sum(bits)
            assert all((bit, mark) in placed_bits for bit in bits if mask & bit)

    def _expire(self, now: float) -> None:
        self._now = now
        least = self._num_marks - _MOST_EXPIRED
        while self._placed and (
            self._num_marks > self.max_marks or (self._placed[0].until <= now and self._num_marks > least)
        ):
            placed = self._placed.popleft()
            self._num_marks -= len(placed.marks)
            self._clear(placed.bit, placed.marks)
        first = self._placed[0].until if self._placed else inf
        while self._retired and self._retired[0][0] <= now and self._retired[0][0] < first:
            self._bits.release(self._retired.popleft()[1])

    def _clear(self, bit: int, blocks: list[bytes]) -> None:
        marks = self._marks
        for mask, start, end in runs(self._masks(blocks)):
            if mask == bit:
                for block in blocks[start:end]:
                    marks[block[-1] & _LAST].pop(block, None)
            elif mask & bit:
                self._set(blocks[start:end], mask ^ bit)

    def _masks(self, blocks: Sequence[bytes]) -> list[int]:
        """Bits of workers for each block."""
        marks = self._marks
        return [marks[block[-1] & _LAST].get(block, 0) for block in blocks]

    def _set(self, blocks: Sequence[bytes], mask: int) -> None:
        marks = self._marks
        for block in blocks:
            marks[block[-1] & _LAST][block] = mask


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
