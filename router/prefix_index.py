"""PrefixIndex: what each worker caches, told by its KV events and, between them, by our own placements.

A worker is exact while every change of its caches has been heard, in order. A gap in its numbers makes it degraded, and
so does its own word that it has missed changes of its engine: what is known of it still counts, and the next snapshot,
which replaces all of it, makes it exact again. After a gap we ask for one; a worker that is itself unsure sends one
when it is sure again. A prediction counts as a block in the engine's own memory, from a placement until the
worker says that the block has gone, and for PREDICTION_TTL_S at most.

The table of blocks is bounded (router/block_table.py). A worker whose blocks did not all fit stays degraded until it
starts anew, and is not asked for a snapshot, which would fit no better.

A block is known by the last 8 bytes of vLLM's hash of it, as in vLLM's own events. That another block among the 2^22
that are indexed has the same ones happens to one look-up in 2^42, and costs a wrong guess of what a worker has cached:
the engines compare whole hashes.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from cluster.types import KvEvents, KvTier, WorkerId
from router.block_table import DISK, GPU, HOST, NEAR, PREDICTED, BlockTable, Hit, Holder

__all__ = ["PREDICTION_TTL_S", "Hit", "PrefixIndex"]

MAX_BLOCKS = 1 << 22
"""About half a gigabyte. Fewer than the cell's workers cache, and longer prefixes are found too short."""

PREDICTION_TTL_S = 10.0
"""A prompt is computed, or at least begun, by then. Longer keeps more of what was aborted, or went elsewhere; shorter
sends the copies of a prompt that waits in a queue to other workers.
"""

_PLACES = {KvTier.GPU: GPU, KvTier.HOST: HOST, KvTier.DISK: DISK}
_LEAVES = {KvTier.GPU: NEAR, KvTier.HOST: HOST, KvTier.DISK: DISK}


class _Worker:
    __slots__ = ("has_missed", "holder", "is_unsure", "last_number")

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.last_number: int | None = None
        """Of its messages. None: none has been heard."""
        self.has_missed = True
        """We have not heard some of its changes; only a snapshot can tell which."""
        self.is_unsure = False
        """It has itself missed changes of its engine."""


class _Predicted(NamedTuple):
    until: float
    holder: Holder
    block_hashes: list[bytes]
    """That were not known or predicted before: only this prediction's end ends them."""


class PrefixIndex:
    __slots__ = ("_num_predicted", "_predicted", "_table", "_workers")

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._table = BlockTable(max_blocks)
        self._workers: dict[WorkerId, _Worker] = {}
        self._predicted: deque[_Predicted] = deque()
        """Oldest first."""
        self._num_predicted = 0

    @property
    def num_blocks(self) -> int:
        """Different ones that are known or predicted somewhere."""
        return len(self._table)

    @property
    def memory_bytes(self) -> int:
        return self._table.memory_bytes

    def is_exact(self, worker: WorkerId) -> bool:
        """Every change of its caches has been heard."""
        known = self._workers.get(worker)
        return known is not None and not (known.has_missed or known.is_unsure or known.holder.is_cut)

    def handle(self, events: KvEvents, now: float) -> bool:
        """Returns True when a snapshot is wanted of the worker."""
        known = self._workers.get(events.worker) or self._add(events.worker)
        if known.last_number is not None and events.number <= known.last_number:
            return known.has_missed  # said twice, or overtaken
        if events.is_snapshot:
            self._empty(known)
            known.has_missed = known.is_unsure = False
        elif events.number - 1 != known.last_number:
            known.has_missed = True
        known.is_unsure |= not events.is_exact
        known.last_number = events.number
        num_joined = 0
        for change in events.changes:
            if change.block_hashes is None:
                self._empty(known)
            elif change.is_stored:
                self._table.join(known.holder, _PLACES[change.tier], change.block_hashes)
                num_joined += len(change.block_hashes)
            else:
                self._table.leave(known.holder, _LEAVES[change.tier], change.block_hashes)
        self._expire(now)
        self._table.sweep(num_joined)
        return known.has_missed

    def check(self, worker: WorkerId, last_number: int | None) -> bool:
        """A worker says that this was its last message (None: it sends none). Returns True to ask for a snapshot."""
        if last_number is None:
            return False
        known = self._workers.get(worker)
        if known is None:
            return True
        if known.last_number is None or known.last_number < last_number:
            known.has_missed = True
        return known.has_missed

    def predict(self, worker: WorkerId, block_hashes: Sequence[bytes], now: float) -> None:
        """A prompt was placed: the worker will hold these blocks soon."""
        self._expire(now)
        known = self._workers.get(worker) or self._add(worker)
        news = self._table.join(known.holder, PREDICTED, block_hashes, unless=GPU)
        self._table.sweep(len(news))
        if news:
            self._predicted.append(_Predicted(now + PREDICTION_TTL_S, known.holder, news))
            self._num_predicted += len(news)

    def longest(self, block_hashes: Sequence[bytes], now: float) -> dict[WorkerId, Hit]:
        """What every worker caches of a prompt. Workers without its first block are absent."""
        self._expire(now)
        return self._table.longest(block_hashes)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone."""
        known = self._workers.pop(worker, None)
        if known is not None:
            self._table.close(known.holder)

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each step."""
        self._table.validate()
        for worker, known in self._workers.items():
            assert known.holder.worker == worker and known.holder.is_live
        assert self._num_predicted == sum(len(predicted.block_hashes) for predicted in self._predicted)
        assert list(self._predicted) == sorted(self._predicted, key=lambda predicted: predicted.until)

    def _add(self, worker: WorkerId) -> _Worker:
        known = self._workers[worker] = _Worker(self._table.open(worker))
        return known

    def _empty(self, known: _Worker) -> None:
        """It caches nothing."""
        self._table.close(known.holder)
        known.holder = self._table.open(known.holder.worker)

    def _expire(self, now: float) -> None:
        """Also before their time, when predictions take too much of the table."""
        most = self._table.max_blocks // 4
        while self._predicted and (self._predicted[0].until <= now or self._num_predicted > most):
            predicted = self._predicted.popleft()
            self._num_predicted -= len(predicted.block_hashes)
            if predicted.holder.is_live:
                self._table.leave(predicted.holder, PREDICTED, predicted.block_hashes)
