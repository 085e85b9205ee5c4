"""Entries: what is found of prompts that were used, and what goes first."""

from sys import getsizeof

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.prefixes.entries import Entries
from router.prefixes.generations import Generations
from router.prefixes.holder import GPU, Holder
from router.prefixes.narrowing import Narrowing

SIZE = 8
"""Blocks of a generation."""
HOLDERS = [Holder(1 << number) for number in range(2)]
for number, each in enumerate(HOLDERS):
    each.take_slot(number)

paths = st.lists(st.integers(0, 2), min_size=1, max_size=12)
"""Prompts as paths in a tree, so that they share prefixes."""


def prompt(path: list[int]) -> list[bytes]:
    return [hash(tuple(path[:depth])).to_bytes(8, "big", signed=True) for depth in range(1, len(path) + 1)]


def an_entries() -> Entries:
    return Entries(1000, Generations(SIZE))


def use(entries: Entries, holder: Holder, blocks: list[bytes]) -> None:
    entries.use(blocks, holder.bits[GPU], holder.entry(GPU, entries.generations.current))


def num_found(entries: Entries, blocks: list[bytes], *holders: Holder) -> int:
    """Leading blocks of the longest hit of these holders, or of all."""
    found = Narrowing(sum(holder.unit for holder in holders or HOLDERS))
    entries.walk(blocks, found)
    return found.depth


class Use(RuleBasedStateMachine):
    """Whole prompts come, are looked up, and lose their ends; the oldest blocks expire and are swept."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = an_entries()
        self.held: dict[int, set[bytes]] = {0: set(), 1: set()}
        self.prompts: list[list[bytes]] = []
        self.bound = 0

    @rule(holder=st.sampled_from(HOLDERS), path=paths)
    def store(self, holder: Holder, path: list[int]) -> None:
        self.prompts.append(prompt(path))
        self.held[holder.slot] |= set(self.prompts[-1])
        use(self.entries, holder, self.prompts[-1])
        assert num_found(self.entries, self.prompts[-1]) == len(path)

    @rule(path=paths)
    def look_up(self, path: list[int]) -> None:
        depth = num_found(self.entries, prompt(path))
        self.entries.use(prompt(path)[:depth], 0, 0)
        assert num_found(self.entries, prompt(path)) == depth

    @rule(holder=st.sampled_from(HOLDERS), data=st.data())
    def lose_ends(self, holder: Holder, data: st.DataObject) -> None:
        """An engine evicts blocks that no other block follows."""
        if not self.prompts:
            return
        blocks = data.draw(st.sampled_from(self.prompts))
        kept = data.draw(st.integers(0, len(blocks)))
        gone = {block for other in self.prompts if other[:kept] == blocks[:kept] for block in other[kept:]}
        self.held[holder.slot] -= gone
        self.entries.remove(sorted(gone), holder.bits[GPU])

    @rule(num_kept=st.integers(0, 60))
    def expire(self, num_kept: int) -> None:
        self.entries.generations.expire(num_kept)
        assert self.entries.generations.num_live <= num_kept

    @rule(number=st.integers(0, 1), closes=st.booleans())
    def sweep(self, number: int, closes: bool) -> None:
        places = HOLDERS[number].bits[GPU] if closes else 0
        if closes:
            self.held[number] = set()
        for shard in range(self.entries.num_shards):
            self.entries.sweep(shard, places, self.entries.generations.oldest)
        assert len(self.entries) == self.entries.generations.num_live

    @invariant()
    def is_sound(self) -> None:
        self.entries.validate(HOLDERS[0].bits[GPU] | HOLDERS[1].bits[GPU])

    @invariant()
    def never_claims_what_is_not_held(self) -> None:
        for blocks in self.prompts:
            for holder in HOLDERS:
                assert set(blocks[: num_found(self.entries, blocks, holder)]) <= self.held[holder.slot]

    @invariant()
    def has_no_block_without_those_before_it(self) -> None:
        for blocks in self.prompts:
            depth = num_found(self.entries, blocks)
            assert not any(num_found(self.entries, [block]) for block in blocks[depth:])


TestUse = Use.TestCase
TestUse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(paths, min_size=1, max_size=30), st.integers(0, 29))
def test_what_was_used_last_is_found_when_the_rest_expires(used: list[list[int]], looked_up: int) -> None:
    entries = an_entries()
    for path in used:
        use(entries, HOLDERS[0], prompt(path))
    last = prompt(used[looked_up % len(used)])
    entries.use(last, 0, 0)
    entries.generations.expire(SIZE + len(last))
    assert num_found(entries, last) == len(last)


def test_shards_do_not_stay_large_after_changes() -> None:
    """Dictionaries keep the room of what was removed."""
    entries, holder = an_entries(), HOLDERS[0]
    kept = [number.to_bytes(8, "big") for number in range(1000)]
    use(entries, holder, kept)
    for turn in range(1, 20):
        passing = [(turn * 10_000 + number).to_bytes(8, "big") for number in range(1000)]
        use(entries, holder, passing)
        entries.remove(passing, holder.bits[GPU])
    entries.sweep(0, 0, 0)
    assert num_found(entries, kept) == 1000
    assert getsizeof(entries._shards[0]) < 60 * len(kept)
