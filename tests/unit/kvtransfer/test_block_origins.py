"""What depends on which handoff, against a model that knows what each cached block was computed from."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cluster.messages.ids import WorkerId
from kvtransfer.block_origins import MAX_ORIGINS, BlockOrigins
from kvtransfer.handoff import PulledBlocks
from kvtransfer.lease_terms import LeaseId

P0, P1 = WorkerId("p0"), WorkerId("p1")
FROM_P0, OTHER_FROM_P0 = PulledBlocks(P0, LeaseId("a")), PulledBlocks(P0, LeaseId("b"))
FROM_P1 = PulledBlocks(P1, LeaseId("c"))
ALL_OF_P0, ALL_OF_P1 = PulledBlocks(P0), PulledBlocks(P1)


def chain(text: str) -> list[bytes]:
    """The hashes of a prompt whose blocks are its letters: each stands for all letters up to it."""
    return [text[:end].encode() for end in range(1, len(text) + 1)]


def texts(hashes: set[bytes] | None) -> set[str]:
    assert hashes is not None
    return {one.decode() for one in hashes}


def a_log(*, max_blocks: int = 1000, max_origins: int = MAX_ORIGINS) -> BlockOrigins:
    return BlockOrigins(lambda block_hash: True, max_blocks, max_origins)


def handoffs(number: int, lender: str = "p0") -> list[PulledBlocks]:
    return [PulledBlocks(WorkerId(lender), LeaseId(f"{lender}-{lease}")) for lease in range(number)]


def is_dropped_with(log: BlockOrigins, blocks: PulledBlocks) -> bool:
    return bool(log.of(blocks, []))


def test_pulled_blocks_are_of_their_lender_and_their_lease() -> None:
    log = a_log()
    log.pulled(chain("abc")[1:], FROM_P0)
    log.pulled(chain("xy"), OTHER_FROM_P0)
    log.pulled(chain("uv"), FROM_P1)
    assert texts(log.of(ALL_OF_P0, [])) == {"ab", "abc", "x", "xy"}
    assert texts(log.of(FROM_P0, [])) == {"ab", "abc"}
    assert texts(log.of(ALL_OF_P1, [])) == {"u", "uv"}


def test_what_was_computed_on_top_is_of_the_same_lender() -> None:
    log = a_log()
    log.pulled(chain("ab"), FROM_P0)
    log.finished(chain("abc"))
    log.finished(chain("abcde"))
    log.finished(chain("xyz"))
    assert texts(log.of(ALL_OF_P0, [])) == {"a", "ab", "abc", "abcd", "abcde"}


def test_running_requests_are_looked_through() -> None:
    log = a_log()
    log.pulled(chain("ab"), FROM_P0)
    assert texts(log.of(ALL_OF_P0, [chain("abcd"), chain("xyz")])) == {"a", "ab", "abc", "abcd"}


def test_blocks_are_dropped_with_those_before_them_and_not_with_those_after_them() -> None:
    log = a_log()
    log.pulled(chain("ab"), FROM_P0)
    log.pulled(chain("abcd")[2:], FROM_P1)
    log.finished(chain("abcde"))
    assert texts(log.of(ALL_OF_P1, [])) == {"abc", "abcd", "abcde"}
    assert texts(log.of(ALL_OF_P0, [])) == {"a", "ab", "abc", "abcd", "abcde"}


def test_block_that_was_dropped_is_nobody_s() -> None:
    log = a_log()
    log.pulled(chain("ab"), FROM_P0)
    log.dropped(chain("ab"))
    log.finished(chain("abc"))
    assert log.of(ALL_OF_P0, []) == set()


def test_origins_that_are_lost_are_said_to_be() -> None:
    log = a_log(max_blocks=3)
    log.pulled(chain("ab"), FROM_P0)
    log.pulled(chain("uvw"), FROM_P1)
    assert None in (log.of(ALL_OF_P0, []), log.of(ALL_OF_P1, []))
    log.clear()
    assert log.of(ALL_OF_P0, []) == set()


def test_handoffs_of_a_block_are_told_apart_up_to_a_number_and_its_lenders_after_that() -> None:
    log, leases = a_log(), handoffs(MAX_ORIGINS + 1)
    unrelated = PulledBlocks(P0, LeaseId("that never brought it"))
    for lease in leases[:-1]:
        log.pulled(chain("ab"), lease)
        log.finished(chain("abc"))
    assert all(is_dropped_with(log, lease) for lease in leases[:-1])
    assert not is_dropped_with(log, leases[-1]) and not is_dropped_with(log, unrelated)
    log.pulled(chain("ab"), leases[-1])
    log.finished(chain("abc"))
    assert texts(log.of(leases[-1], [])) == texts(log.of(unrelated, [])) == {"a", "ab", "abc"}
    assert not is_dropped_with(log, FROM_P1)
    log.pulled(chain("a"), FROM_P1)
    assert texts(log.of(FROM_P1, [])) == {"a"}
    assert not is_dropped_with(log, PulledBlocks(P1, LeaseId("another")))


def test_block_of_very_many_lenders_is_dropped_with_any_of_them() -> None:
    log = a_log(max_blocks=4)
    for number in range(MAX_ORIGINS + 1):
        log.pulled(chain("ab"), handoffs(1, f"p{number}")[0])
    assert texts(log.of(handoffs(1, "another")[0], [])) == {"a", "ab"}
    log.finished(chain("abcdef"))
    assert log.of(PulledBlocks(WorkerId("another")), []) is None, "the record has no place for all of them"


@pytest.mark.parametrize("num_lenders", [1, 3, 2 * MAX_ORIGINS])
def test_record_of_a_prompt_that_is_pulled_again_and_again_does_not_grow(num_lenders: int) -> None:
    """The tiers keep it for as long as it is used. Each pull must cost as much as the first ones."""
    log, hashes = a_log(), [number.to_bytes(32, "big") for number in range(100)]

    def pull(number: int) -> None:
        log.pulled(hashes, PulledBlocks(WorkerId(f"p{number % num_lenders}"), LeaseId(f"lease {number}")))
        log.finished(hashes)

    tracemalloc.start()
    try:
        for number in range(100):
            pull(number)
        size, _ = tracemalloc.get_traced_memory()
        for number in range(100, 500):
            pull(number)
        assert tracemalloc.get_traced_memory()[0] - size < 10_000
    finally:
        tracemalloc.stop()


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40), st.integers(1, 5))
def test_record_is_as_large_as_the_caches_and_not_as_their_history(prompts: list[str], num_cached: int) -> None:
    """The engine caches the last few prompts only."""
    cached: list[list[bytes]] = []
    log = BlockOrigins(lambda block_hash: any(block_hash in hashes for hashes in cached))
    for number, letter in enumerate(prompts):
        hashes = chain(f"{letter}{number:04d}")
        cached = [*cached, hashes][-num_cached:]
        log.pulled(hashes, FROM_P0)
        log.finished(hashes)
        assert len(log) <= 2 * sum(map(len, cached)) + 2 * len(hashes)
    found = log.of(ALL_OF_P0, [])
    assert found is not None
    assert found >= {one for hashes in cached for one in hashes}


def dependent_on(blocks: PulledBlocks, origins_of: dict[bytes, frozenset[PulledBlocks]]) -> set[bytes]:
    return {
        one
        for one, origins in origins_of.items()
        if any(origin.lender == blocks.lender and blocks.lease in (None, origin.lease) for origin in origins)
    }


class AnyRequests(RuleBasedStateMachine):
    """Requests of a few prompts that share prefixes, with local hits and pulls of any length. The model holds what each
    block was really computed from, and the record without a limit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log = a_log()
        self.recorded: dict[bytes, frozenset[PulledBlocks]] = {}
        self.is_exact = True
        self.cached: dict[bytes, frozenset[PulledBlocks]] = {}

    @initialize(max_origins=st.sampled_from([1, 2, MAX_ORIGINS]))
    def limit(self, max_origins: int) -> None:
        self.log = a_log(max_origins=max_origins)
        self.is_exact = max_origins == MAX_ORIGINS

    @rule(
        text=st.text("ab", min_size=1, max_size=6),
        num_pulled=st.integers(0, 6),
        handoff=st.sampled_from([FROM_P0, OTHER_FROM_P0, FROM_P1]),
        num_output=st.integers(0, 2),
    )
    def request(self, text: str, num_pulled: int, handoff: PulledBlocks, num_output: int) -> None:
        prompt, hashes = chain(text), chain(text + "c" * num_output)
        num_local = next((n for n, one in enumerate(prompt) if one not in self.cached), len(prompt))
        pulled = prompt[num_local : num_local + num_pulled]
        if pulled:
            self.log.pulled(prompt[num_local:], handoff)
            for one in prompt[num_local:]:
                self.recorded[one] = self.recorded.get(one, frozenset()) | {handoff}
        below, recorded_below = frozenset[PulledBlocks](), frozenset[PulledBlocks]()
        for one in hashes:
            if one in pulled:
                self.cached[one] = frozenset({handoff})
            elif one not in self.cached:
                self.cached[one] = below
            below |= self.cached[one]
            recorded_below |= self.recorded.get(one, frozenset())
            if recorded_below:
                self.recorded[one] = recorded_below
        self.log.finished(hashes)

    @rule(text=st.text("abc", min_size=1, max_size=6))
    def evict(self, text: str) -> None:
        """A block and all after it, as vLLM evicts from the end."""
        for one in [one for one in self.cached if one.startswith(text.encode())]:
            del self.cached[one]

    @rule(blocks=st.sampled_from([ALL_OF_P0, ALL_OF_P1, FROM_P0]))
    def forget(self, blocks: PulledBlocks) -> None:
        found = self.log.of(blocks, [])
        assert found is not None
        self.cached = {one: origins for one, origins in self.cached.items() if one not in found}
        self.recorded = {one: origins for one, origins in self.recorded.items() if one not in found}
        self.log.dropped(found)

    @invariant()
    def nothing_wrong_would_stay(self) -> None:
        for blocks in (ALL_OF_P0, ALL_OF_P1, FROM_P0, OTHER_FROM_P0):
            found = self.log.of(blocks, [])
            assert found is not None
            assert found >= dependent_on(blocks, self.cached)
            recorded = dependent_on(blocks, self.recorded)
            assert found == recorded if self.is_exact else found >= recorded


AnyRequests.TestCase.settings = settings(max_examples=50, stateful_step_count=20)
TestAnyRequests = AnyRequests.TestCase
