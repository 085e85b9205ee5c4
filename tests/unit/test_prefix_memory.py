from hypothesis import given
from hypothesis import strategies as st

from cluster.types import WorkerId
from router import prefix_memory
from router.prefix_memory import CHUNK_TOKENS, Held, PrefixMemory, prefix_chain

D0, D1 = WorkerId("d0"), WorkerId("d1")
TURN = list(range(200))


def anyone(worker: WorkerId) -> bool:
    return True


def test_next_turn_is_found_where_the_one_before_was():
    memory = PrefixMemory()
    memory.remember(prefix_chain(TURN), D0)
    next_turn = prefix_chain([*TURN, *range(500, 900)])
    assert memory.longest(next_turn, anyone) == Held(D0, 3 * CHUNK_TOKENS)


def test_prompt_that_differs_in_its_first_chunk_is_another():
    memory = PrefixMemory()
    memory.remember(prefix_chain(TURN), D0)
    assert memory.longest(prefix_chain([7, *TURN[1:]]), anyone) is None


def test_prompt_shorter_than_a_chunk_is_not_remembered():
    assert prefix_chain(TURN[: CHUNK_TOKENS - 1]) == []


def test_longest_part_on_a_usable_worker_counts():
    memory = PrefixMemory()
    memory.remember(prefix_chain(TURN), D0)
    memory.remember(prefix_chain(TURN[:CHUNK_TOKENS]), D1)
    chain = prefix_chain(TURN)
    assert memory.longest(chain, anyone) == Held(D0, 3 * CHUNK_TOKENS)
    assert memory.longest(chain, lambda worker: worker == D1) == Held(D1, CHUNK_TOKENS)


def test_what_was_used_longest_ago_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(prefix_memory, "MAX_CHUNKS", 2)
    memory = PrefixMemory()
    prompts = [[number] * CHUNK_TOKENS for number in range(3)]
    for prompt in (prompts[0], prompts[1], prompts[0], prompts[2]):
        memory.remember(prefix_chain(prompt), D0)
    assert [memory.longest(prefix_chain(p), anyone) is not None for p in prompts] == [True, False, True]


@given(st.lists(st.integers(0, 3), max_size=300), st.lists(st.integers(0, 3), max_size=300))
def test_chains_share_as_many_chunks_as_the_prompts_do(first, second):
    shared = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    chains = zip(prefix_chain(first), prefix_chain(second), strict=False)
    assert sum(a == b for a, b in chains) == shared // CHUNK_TOKENS
