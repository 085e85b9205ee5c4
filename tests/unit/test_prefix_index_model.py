"""The prefix index against dictionaries of sets, over random event streams with loss, repetition, late messages,
snapshots, departures, predictions and time."""

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.types import KvChange, KvEvents, KvTier, WorkerId
from router.prefix_index import PREDICTION_TTL_S, Hit, PrefixIndex

WORKERS = [WorkerId(name) for name in "ab"]
NUM_BLOCKS = 4

workers = st.sampled_from(WORKERS)
tiers = st.sampled_from(list(KvTier))
block_lists = st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=6)
changes = st.lists(st.tuples(tiers, st.booleans(), st.one_of(block_lists, block_lists, st.none())), max_size=4)


def key(block: int) -> bytes:
    return block.to_bytes(8, "big")


class Naive:
    """The index as one would write it without thinking of time and space."""

    def __init__(self) -> None:
        self.held: dict[WorkerId, dict[KvTier, set[int]]] = defaultdict(lambda: {tier: set() for tier in KvTier})
        self.records: list[tuple[float, WorkerId, set[int]]] = []
        self.last: dict[WorkerId, int] = {}
        self.missed: set[WorkerId] = set()
        self.unsure: set[WorkerId] = set()

    def handle(self, events: KvEvents) -> None:
        worker = events.worker
        if worker in self.last and events.number <= self.last[worker]:
            return
        if events.is_snapshot:
            self.empty(worker)
            self.missed.discard(worker)
            self.unsure.discard(worker)
        elif worker not in self.last or events.number != self.last[worker] + 1:
            self.missed.add(worker)
        if not events.is_exact:
            self.unsure.add(worker)
        self.last[worker] = events.number
        for change in events.changes:
            if change.block_hashes is None:
                self.empty(worker)
                continue
            blocks = {int.from_bytes(block, "big") for block in change.block_hashes}
            if change.is_stored:
                self.held[worker][change.tier] |= blocks
            else:
                self.held[worker][change.tier] -= blocks
                if change.tier is KvTier.GPU:
                    self.unpredict(worker, blocks)

    def empty(self, worker: WorkerId) -> None:
        self.held.pop(worker, None)
        self.unpredict(worker, set(range(NUM_BLOCKS)))

    def forget(self, worker: WorkerId) -> None:
        self.empty(worker)
        self.last.pop(worker, None)
        self.missed.discard(worker)
        self.unsure.discard(worker)

    def unpredict(self, worker: WorkerId, blocks: set[int]) -> None:
        self.records = [(until, w, b - blocks if w == worker else b) for until, w, b in self.records]

    def predict(self, worker: WorkerId, blocks: list[int], now: float) -> None:
        self.expire(now)
        news = set(blocks) - self.predicted(worker) - self.held[worker][KvTier.GPU]
        self.records.append((now + PREDICTION_TTL_S, worker, news))

    def predicted(self, worker: WorkerId) -> set[int]:
        return {block for _, w, blocks in self.records if w == worker for block in blocks}

    def expire(self, now: float) -> None:
        self.records = [record for record in self.records if record[0] > now]

    def is_exact(self, worker: WorkerId) -> bool:
        return worker in self.last and worker not in self.missed | self.unsure

    def longest(self, blocks: list[int], now: float) -> dict[WorkerId, Hit]:
        self.expire(now)
        hits = {}
        for worker in WORKERS:
            near = self.held[worker][KvTier.GPU] | self.predicted(worker)
            hit = Hit(leading(blocks, near.union(*self.held[worker].values())), leading(blocks, near))
            if hit.num_blocks:
                hits[worker] = hit
        return hits


def leading(blocks: list[int], held: set[int]) -> int:
    return next((depth for depth, block in enumerate(blocks) if block not in held), len(blocks))


class Stream(RuleBasedStateMachine):
    """Workers that send, a network that loses, repeats and delays, and an index and a model that hear the same."""

    def __init__(self) -> None:
        super().__init__()
        self.index, self.model = PrefixIndex(), Naive()
        self.now = 0.0
        self.sent: dict[WorkerId, int] = {}
        self.late: list[KvEvents] = []

    @rule(worker=workers, what=changes)
    def send(self, worker, what):
        self.hear(self.message(worker, what))

    @rule(worker=workers, what=changes, is_snapshot=st.booleans())
    def send_unsure(self, worker, what, is_snapshot):
        self.hear(self.message(worker, what, is_snapshot, is_exact=False))

    @rule(worker=workers, what=changes)
    def send_snapshot(self, worker, what):
        self.hear(self.message(worker, what, is_snapshot=True))

    @rule(worker=workers, what=changes, is_snapshot=st.booleans())
    def delay(self, worker, what, is_snapshot):
        self.late.append(self.message(worker, what, is_snapshot))

    @rule(worker=workers)
    def lose(self, worker):
        self.sent[worker] = self.sent.get(worker, 0) + 1

    @rule(data=st.data())
    def hear_late_or_again(self, data):
        if self.late:
            self.hear(data.draw(st.sampled_from(self.late)))

    @rule(worker=workers)
    def report(self, worker):
        wanted = self.index.check(worker, self.sent.get(worker))
        if worker in self.sent:
            if worker in self.model.last and self.model.last[worker] < self.sent[worker]:
                self.model.missed.add(worker)
            assert wanted == (worker not in self.model.last or worker in self.model.missed)
        else:
            assert not wanted

    @rule(worker=workers)
    def forget(self, worker):
        self.index.forget(worker)
        self.model.forget(worker)

    @rule(worker=workers, blocks=block_lists)
    def predict(self, worker, blocks):
        self.index.predict(worker, [key(block) for block in blocks], self.now)
        self.model.predict(worker, blocks, self.now)

    @rule(seconds=st.sampled_from([0.1, PREDICTION_TTL_S / 2, PREDICTION_TTL_S]))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def is_sound(self):
        self.index.validate()
        for worker in WORKERS:
            assert self.index.is_exact(worker) == self.model.is_exact(worker)
        for first in range(NUM_BLOCKS):
            self.look_up([*range(first, NUM_BLOCKS), *range(first)])

    def look_up(self, blocks):
        found = self.index.longest([key(block) for block in blocks], self.now)
        assert found == self.model.longest(blocks, self.now)

    def message(self, worker, what, is_snapshot=False, is_exact=True):
        self.sent[worker] = self.sent.get(worker, 0) + 1
        told = [
            KvChange(tier, is_stored and blocks is not None, blocks and [key(block) for block in blocks])
            for tier, is_stored, blocks in what
            if blocks is None or blocks
        ]
        return KvEvents(worker, self.sent[worker], is_snapshot, is_exact, told)

    def hear(self, message):
        wanted = self.index.handle(message, self.now)
        self.model.handle(message)
        assert wanted == (message.worker in self.model.missed)


TestStream = pytest.mark.filterwarnings("default")(Stream.TestCase)
TestStream.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
