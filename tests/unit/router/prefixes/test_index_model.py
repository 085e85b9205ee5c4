"""The prefix index against dictionaries of sets, over random event streams with loss, repetition, late messages,
snapshots, departures, predictions and time."""

from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.messages.ids import WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from router.prefixes.index import PREDICTION_TTL_S, Hit, PrefixIndex
from router.prefixes.snapshot_turns import TURN_S

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
        self.placed: list[tuple[float, WorkerId, set[int]]] = []
        self.marks: set[tuple[WorkerId, int]] = set()
        self.last: dict[WorkerId, int] = {}
        self.missed: set[WorkerId] = set()
        self.unsure: set[WorkerId] = set()

    def handle(self, events: KvEvents, now: float) -> None:
        self.expire(now)
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
                self.marks -= {(worker, block) for block in blocks}

    def empty(self, worker: WorkerId) -> None:
        self.held.pop(worker, None)

    def forget(self, worker: WorkerId) -> None:
        self.empty(worker)
        self.last.pop(worker, None)
        self.missed.discard(worker)
        self.unsure.discard(worker)
        self.marks = {mark for mark in self.marks if mark[0] != worker}
        self.placed = [placed for placed in self.placed if placed[1] != worker]

    def predict(self, worker: WorkerId, blocks: list[int], now: float) -> None:
        self.expire(now)
        news = {block for block in blocks if (worker, block) not in self.marks}
        self.placed.append((now + PREDICTION_TTL_S, worker, news))
        self.marks |= {(worker, block) for block in news}

    def expire(self, now: float) -> None:
        for until, worker, blocks in self.placed:
            if until <= now:
                self.marks -= {(worker, block) for block in blocks}
        self.placed = [placed for placed in self.placed if placed[0] > now]

    def is_exact(self, worker: WorkerId) -> bool:
        return worker in self.last and worker not in self.missed | self.unsure

    def longest(self, blocks: list[int], now: float) -> dict[WorkerId, Hit]:
        self.expire(now)
        hits = {}
        for worker in WORKERS:
            held = self.held[worker]
            expected = max([depth for depth, block in enumerate(blocks, 1) if (worker, block) in self.marks], default=0)
            near = max(leading(blocks, held[KvTier.GPU]), expected)
            anywhere = max(leading(blocks, set().union(*held.values())), expected)
            if anywhere:
                hits[worker] = Hit(anywhere, near)
        return hits


def leading(blocks: list[int], held: set[int]) -> int:
    return next((depth for depth, block in enumerate(blocks) if block not in held), len(blocks))


class Stream(RuleBasedStateMachine):
    """Workers that send, a network that loses, repeats and delays, and an index and a model that hear the same."""

    def __init__(self) -> None:
        super().__init__()
        self.index, self.model = PrefixIndex(max_blocks=100), Naive()
        self.now = 0.0
        self.sent: dict[WorkerId, int] = {}
        self.late: list[KvEvents] = []
        self.asked: dict[WorkerId, float] = {}

    @rule(worker=workers, what=changes)
    def send(self, worker: WorkerId, what: list[tuple[KvTier, bool, list[int] | None]]) -> None:
        self.hear(self.message(worker, what))

    @rule(worker=workers, what=changes, is_snapshot=st.booleans())
    def send_unsure(
        self, worker: WorkerId, what: list[tuple[KvTier, bool, list[int] | None]], is_snapshot: bool
    ) -> None:
        self.hear(self.message(worker, what, is_snapshot, is_exact=False))

    @rule(worker=workers, what=changes)
    def send_snapshot(self, worker: WorkerId, what: list[tuple[KvTier, bool, list[int] | None]]) -> None:
        self.hear(self.message(worker, what, is_snapshot=True))

    @rule(worker=workers, what=changes, is_snapshot=st.booleans())
    def delay(self, worker: WorkerId, what: list[tuple[KvTier, bool, list[int] | None]], is_snapshot: bool) -> None:
        self.late.append(self.message(worker, what, is_snapshot))

    @rule(worker=workers)
    def lose(self, worker: WorkerId) -> None:
        self.sent[worker] = self.sent.get(worker, 0) + 1

    @rule(data=st.data())
    def hear_late_or_again(self, data: st.DataObject) -> None:
        if self.late:
            self.hear(data.draw(st.sampled_from(self.late)))

    @rule(worker=workers)
    def report(self, worker: WorkerId) -> None:
        asked = self.index.check(worker, self.sent.get(worker), self.now)
        if worker not in self.sent:
            assert not asked
            return
        if worker in self.model.last and self.model.last[worker] < self.sent[worker]:
            self.model.missed.add(worker)
        is_needed = worker not in self.model.last or worker in self.model.missed
        if is_needed and self.now >= self.asked.get(worker, float("-inf")) + TURN_S:
            assert asked
        if asked:
            assert is_needed or not self.index.is_exact(worker)
            self.asked[worker] = self.now

    @rule(worker=workers)
    def forget(self, worker: WorkerId) -> None:
        self.index.forget(worker)
        self.model.forget(worker)

    @rule(worker=workers, blocks=block_lists)
    def predict(self, worker: WorkerId, blocks: list[int]) -> None:
        self.index.predict(worker, [key(block) for block in blocks], self.now)
        self.model.predict(worker, blocks, self.now)

    @rule(seconds=st.sampled_from([0.1, PREDICTION_TTL_S / 2, PREDICTION_TTL_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def is_sound(self) -> None:
        self.index.validate()
        for worker in WORKERS:
            assert self.index.is_exact(worker) == self.model.is_exact(worker)
        for first in range(NUM_BLOCKS):
            self.look_up([*range(first, NUM_BLOCKS), *range(first)])

    def look_up(self, blocks: list[int]) -> None:
        found = self.index.longest([key(block) for block in blocks], self.now)
        assert found == self.model.longest(blocks, self.now)

    def message(
        self,
        worker: WorkerId,
        what: list[tuple[KvTier, bool, list[int] | None]],
        is_snapshot: bool = False,
        is_exact: bool = True,
    ) -> KvEvents:
        self.sent[worker] = self.sent.get(worker, 0) + 1
        told = [
            KvChange(
                tier, is_stored and blocks is not None, None if blocks is None else [key(block) for block in blocks]
            )
            for tier, is_stored, blocks in what
            if blocks is None or blocks
        ]
        return KvEvents(worker, self.sent[worker], is_snapshot, is_exact, told)

    def hear(self, message: KvEvents) -> None:
        wanted = self.index.handle(message, self.now)
        self.model.handle(message, self.now)
        assert wanted == (message.worker in self.model.missed)


class CrowdedStream(Stream):
    """An index with room for half of the blocks: it finds too little, never too much, and knows of whom."""

    max_blocks = NUM_BLOCKS // 2

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(self.max_blocks)

    @invariant()
    def is_sound(self) -> None:
        self.index.validate()
        assert self.index.num_blocks <= self.max_blocks
        for first in range(NUM_BLOCKS):
            self.look_up([*range(first, NUM_BLOCKS), *range(first)])

    def look_up(self, blocks: list[int]) -> None:
        found = self.index.longest([key(block) for block in blocks], self.now)
        right = self.model.longest(blocks, self.now)
        for worker in WORKERS:
            hit, right_hit = found.get(worker, Hit(0, 0)), right.get(worker, Hit(0, 0))
            if self.index.is_exact(worker):
                assert self.model.is_exact(worker)
                assert hit == right_hit
            assert hit.num_blocks <= right_hit.num_blocks
            assert hit.num_gpu_blocks <= right_hit.num_gpu_blocks


class EmptyingStream(CrowdedStream):
    """Workers that empty their caches faster than a large index can follow."""

    max_blocks = 1 << 20

    @rule(worker=workers, block=st.integers(0, NUM_BLOCKS - 1), number=st.integers(1, 20))
    def empty_often(self, worker: WorkerId, block: int, number: int) -> None:
        self.hear(self.message(worker, [(KvTier.GPU, True, [block]), (KvTier.GPU, False, None)] * number))

    @rule()
    def sweep(self) -> None:
        self.index.sweep()


TestStream, TestCrowdedStream = Stream.TestCase, CrowdedStream.TestCase
TestEmptyingStream = EmptyingStream.TestCase
TestStream.settings = TestCrowdedStream.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
TestEmptyingStream.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 30)), min_size=1, max_size=30),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_workers_are_exact_again_when_the_others_have_left(stored: list[tuple[int, int, int]], last: int) -> None:
    """`stored`: worker, prompt, and length of each prompt that is stored."""
    index = PrefixIndex(max_blocks=100)
    sender = WorkerId(f"w{last}")
    numbers: Counter[WorkerId] = Counter()
    held: list[bytes] = []
    for who, prompt, length in stored:
        worker = WorkerId(f"w{who}")
        blocks = [key(1000 * prompt + depth) for depth in range(length)]
        if worker == sender and len({*held, *blocks}) <= 40:
            held += [block for block in blocks if block not in held]
        elif worker == sender:
            continue
        numbers[worker] += 1
        change = KvChange(KvTier.GPU, True, blocks)
        index.handle(KvEvents(worker, numbers[worker], numbers[worker] == 1, True, [change]), 0.0)
        index.validate()
        assert index.num_blocks <= 100
    if not held:
        return
    for worker in numbers:
        if worker != sender:
            index.forget(worker)
    for step in range(100):
        if index.check(sender, numbers[sender], float(step)):
            numbers[sender] += 1
            snapshot = KvEvents(sender, numbers[sender], True, True, [KvChange(KvTier.GPU, True, held)])
            index.handle(snapshot, float(step))
    assert index.is_exact(sender)
    for block in held:
        assert index.longest([block], 100.0) == {sender: Hit(1, 1)}
