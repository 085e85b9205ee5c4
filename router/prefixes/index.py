"""PrefixIndex: the KV blocks that each worker caches, from KV events of workers and from placements.

A worker is exact while every change of its caches was received, in order, and nothing of it was dropped. It is degraded
after a gap in the numbers of its messages, and after a message that reports missed changes of its engine. The known
blocks of a degraded worker still count. The next snapshot replaces them and makes the worker exact again. After a gap
the index asks for a snapshot; a worker that missed changes of its engine sends one by itself.

The table of blocks is bounded (router/prefixes/block_table.py). When it is full, it drops the blocks that were not used
for longest, and their workers are partial: what is known of them is right, and is not all. When there is room again,
the index asks partial workers for snapshots, which make them exact. It asks for few snapshots at a time
(router/prefixes/snapshot_turns.py). A worker that empties its caches faster than the table can follow is partial in the
same way.

Expected blocks (router/prefixes/expected_blocks.py) count as blocks in the engine's own memory until a KV event names
them.

The key of a block is the last KEY_BYTES of vLLM's hash (cluster/messages/kv_events.py). With 2^24 indexed blocks, one
look-up in 2^40 finds another block with the same key. Such a look-up costs a wrong prediction of a prefix hit, and no
wrong answer: engines compare whole hashes.
"""

from collections.abc import Sequence
from typing import final

from cluster.config.scheduler import MAX_INDEXED_BLOCKS
from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvEvents, KvTier
from router.prefixes.block_table import BlockTable
from router.prefixes.expected_blocks import PREDICTION_TTL_S, ExpectedBlocks
from router.prefixes.holder import DISK, GPU, HOST, Holder
from router.prefixes.narrowing import Hit
from router.prefixes.snapshot_turns import SnapshotTurns
from router.prefixes.worker_bits import WorkerBits

__all__ = ["PREDICTION_TTL_S", "Hit", "PrefixIndex"]

_PLACES = {KvTier.GPU: GPU, KvTier.HOST: HOST, KvTier.DISK: DISK}


@final
class _Worker:
    __slots__ = ("has_missed", "holder", "is_incomplete", "is_unsure", "last_number")

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.last_number: int | None = None
        """Number of the latest message. None before the first message."""
        self.has_missed = True
        """The index has missed messages of the worker. Only a snapshot can replace them."""
        self.is_unsure = False
        """The worker has missed changes of its engine."""
        self.is_incomplete = False
        """Parts of the worker's snapshot are still to come."""


@final
class PrefixIndex:
    __slots__ = ("_bits", "_expected", "_table", "_turns", "_workers")

    def __init__(self, max_blocks: int = MAX_INDEXED_BLOCKS) -> None:
        self._table = BlockTable(max_blocks)
        self._workers: dict[WorkerId, _Worker] = {}
        self._bits = WorkerBits()
        self._expected = ExpectedBlocks(self._bits)
        self._turns = SnapshotTurns()

    @property
    def num_blocks(self) -> int:
        """Distinct blocks in the index."""
        return len(self._table)

    def is_exact(self, worker: WorkerId) -> bool:
        """Whether the index knows exactly what the worker caches."""
        known = self._workers.get(worker)
        if known is None or known.has_missed or known.is_unsure:
            return False
        return not (known.is_incomplete or known.holder.is_cut)

    def handle(self, events: KvEvents, now: float) -> bool:
        """Take in KV events. Returns True if messages of the worker were missed, which a snapshot must replace."""
        known = self._workers.get(events.worker) or self._add(events.worker)
        if known.last_number is not None and events.number <= known.last_number:
            return known.has_missed  # sent twice, or overtaken
        if events.is_snapshot:
            self._table.clear(known.holder)
            known.has_missed = known.is_unsure = False
        elif events.number - 1 != known.last_number:
            known.has_missed = True
        if events.has_more:
            self._turns.part_came(events.worker, now)
        elif events.is_snapshot or known.is_incomplete:
            self._turns.end(events.worker)
        known.is_incomplete = events.has_more
        known.is_unsure |= not events.is_exact
        known.last_number = events.number
        num_joined = 0
        for change in events.changes:
            if change.block_hashes is None:
                self._table.clear(known.holder)
                continue
            if change.tier is KvTier.GPU:
                self._expected.end_marks(known.holder.worker_bit, change.block_hashes, now)
            if change.is_stored:
                self._table.join(known.holder, _PLACES[change.tier], change.block_hashes)
                num_joined += len(change.block_hashes)
            else:
                self._table.leave(known.holder, _PLACES[change.tier], change.block_hashes)
        self._table.sweep(num_joined)
        return known.has_missed

    def check(self, worker: WorkerId, last_number: int | None, now: float) -> bool:
        """A worker reports the number of its latest message, or None if it sends no KV events. Returns True if the
        worker is to send a snapshot now.
        """
        if last_number is None:
            return False
        known = self._workers.get(worker)
        if known is None:
            return self._turns.take(worker, now)
        if known.last_number is None or known.last_number < last_number:
            known.has_missed = True
        if known.has_missed:
            return self._turns.take(worker, now)
        if not known.holder.is_cut:
            return False
        self._table.sweep()  # also if no message comes that would do it
        return self._table.has_room_for(known.holder) and self._turns.take_to_refill(worker, now)

    def miss(self, worker: WorkerId) -> None:
        """KV events of the worker are lost. Only a snapshot can replace them."""
        if (known := self._workers.get(worker)) is not None:
            known.has_missed = True

    @property
    def needs_sweep(self) -> bool:
        """So many workers have left or emptied their caches that look-ups are slow until `sweep` was called often."""
        return self._table.needs_sweep

    def sweep(self) -> None:
        """Clear a part of what workers have left behind that are gone or emptied their caches: a millisecond or two."""
        self._table.sweep_step()

    def predict(self, worker: WorkerId, block_hashes: Sequence[bytes], now: float) -> None:
        """A prompt was placed on the worker: these blocks are expected there."""
        self._expected.add(self._bits.of(worker), block_hashes, now)

    def longest(self, block_hashes: Sequence[bytes], now: float) -> dict[WorkerId, Hit]:
        """The leading blocks of a prompt that each worker has, or is expected to have. Workers without the first block
        are absent.
        """
        known, workers_of = self._table.longest(block_hashes), self._bits.workers_of
        hits: dict[WorkerId, Hit] = {}
        holders = have_as_much = 0
        for hit, workers in known:
            hits |= dict.fromkeys(workers_of(workers), hit)
            holders |= workers
        known.sort(key=_num_gpu_blocks)
        for depth, workers in self._expected.longest(block_hashes, now):
            while known and known[-1][0].num_gpu_blocks >= depth:
                have_as_much |= known.pop()[1]
            news = workers & ~have_as_much
            if not news:
                continue
            expected = Hit(depth, depth)
            for worker in workers_of(news & holders):
                hits[worker] = Hit(max(hits[worker].num_blocks, depth), depth)
            hits |= dict.fromkeys(workers_of(news & ~holders), expected)
        return hits

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone."""
        self._turns.end(worker)
        bit = self._bits.retire(worker)
        if bit is not None:
            self._expected.retire(bit)
        known = self._workers.pop(worker, None)
        if known is not None:
            self._table.clear(known.holder)

    def validate(self) -> None:
        """Assert every invariant. Tests call `validate` after each step."""
        self._table.validate()
        for worker, known in self._workers.items():
            assert known.holder.worker_bit == self._bits.of(worker)
        self._expected.validate()

    def _add(self, worker: WorkerId) -> _Worker:
        known = self._workers[worker] = _Worker(Holder(self._bits.of(worker)))
        return known


def _num_gpu_blocks(found: tuple[Hit, int]) -> int:
    return found[0].num_gpu_blocks
