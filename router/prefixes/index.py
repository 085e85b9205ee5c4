"""PrefixIndex: what each worker caches, told by its KV events and, between them, by our own placements.

A worker is exact while every change of its caches has been heard, in order. A gap in its numbers makes it degraded, and
so does its own word that it has missed changes of its engine: what is known of it still counts, and the next snapshot,
which replaces all of it, makes it exact again. After a gap we ask for one; a worker that is itself unsure sends one
when it is sure again. A prediction (router/prefixes/expected_blocks.py) counts as blocks in the engine's own memory
until the worker itself speaks of them.

The table of blocks is bounded (router/prefixes/block_table.py). A worker whose blocks did not all fit stays degraded
until it starts anew, and is not asked for a snapshot, which would fit no better.

A block is known by the last 8 bytes of vLLM's hash of it, as in vLLM's own events. That another block among the 2^22
that are indexed has the same ones happens to one look-up in 2^42, and costs a wrong guess of what a worker has cached:
the engines compare whole hashes.
"""

from collections.abc import Sequence
from typing import final

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvEvents, KvTier
from router.prefixes.block_table import DISK, GPU, HOST, BlockTable, Hit, Holder
from router.prefixes.expected_blocks import PREDICTION_TTL_S, ExpectedBlocks
from router.prefixes.worker_bits import WorkerBits

__all__ = ["PREDICTION_TTL_S", "Hit", "PrefixIndex"]

MAX_BLOCKS = 1 << 22
"""About half a gigabyte. Fewer than the cell's workers cache, and longer prefixes are found too short."""

_PLACES = {KvTier.GPU: GPU, KvTier.HOST: HOST, KvTier.DISK: DISK}


@final
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


@final
class PrefixIndex:
    __slots__ = ("_bits", "_predictions", "_table", "_workers")

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._table = BlockTable(max_blocks)
        self._workers: dict[WorkerId, _Worker] = {}
        self._bits = WorkerBits()
        self._predictions = ExpectedBlocks(self._bits)

    @property
    def num_blocks(self) -> int:
        """Different ones that are known somewhere."""
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
                continue
            if change.tier is KvTier.GPU:
                self._predictions.heard(known.holder.worker_bit, change.block_hashes, now)
            if change.is_stored:
                self._table.join(known.holder, _PLACES[change.tier], change.block_hashes)
                num_joined += len(change.block_hashes)
            else:
                self._table.leave(known.holder, _PLACES[change.tier], change.block_hashes)
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
        self._predictions.add(self._bits.of(worker), block_hashes, now)

    def longest(self, block_hashes: Sequence[bytes], now: float) -> dict[WorkerId, Hit]:
        """What every worker caches of a prompt, or will soon. Workers without its first block are absent."""
        known, workers_of = self._table.longest(block_hashes), self._bits.workers_of
        hits: dict[WorkerId, Hit] = {}
        everybody = have_as_much = 0
        for hit, workers in known:
            hits |= dict.fromkeys(workers_of(workers), hit)
            everybody |= workers
        known.sort(key=_num_gpu_blocks)
        for depth, workers in self._predictions.longest(block_hashes, now):
            while known and known[-1][0].num_gpu_blocks >= depth:
                have_as_much |= known.pop()[1]
            news = workers & ~have_as_much
            if not news:
                continue
            predicted = Hit(depth, depth)
            for worker in workers_of(news & everybody):
                hits[worker] = Hit(max(hits[worker].num_blocks, depth), depth)
            hits |= dict.fromkeys(workers_of(news & ~everybody), predicted)
        return hits

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone."""
        bit = self._bits.retire(worker)
        if bit is not None:
            self._predictions.retire(bit)
        known = self._workers.pop(worker, None)
        if known is not None:
            self._table.close(known.holder)

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each step."""
        self._table.validate()
        for worker, known in self._workers.items():
            assert known.holder.worker_bit == self._bits.of(worker) and known.holder.is_live
        self._predictions.validate()

    def _add(self, worker: WorkerId) -> _Worker:
        known = self._workers[worker] = _Worker(self._table.open(self._bits.of(worker)))
        return known

    def _empty(self, known: _Worker) -> None:
        """It caches nothing."""
        self._table.close(known.holder)
        known.holder = self._table.open(known.holder.worker_bit)


def _num_gpu_blocks(found: tuple[Hit, int]) -> int:
    return found[0].num_gpu_blocks
