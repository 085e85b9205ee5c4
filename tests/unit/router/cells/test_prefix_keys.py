"""PrefixKeys: which block of a prompt stands for its conversation."""

import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cells.prefix_keys import GENERATION, LEAST_POPULAR, PrefixKeys

SHARE = 1 / 16


def blocks(name: str, number: int) -> list[bytes]:
    return [f"{name}{index}".encode() for index in range(number)]


def taught(prompts: list[list[bytes]], share: float = SHARE) -> PrefixKeys:
    keys = PrefixKeys()
    for prompt in prompts:
        keys.count(prompt, share)
    return keys


def test_first_block_is_the_key_where_nothing_is_popular() -> None:
    keys = taught([blocks(f"chat {number} ", 20) for number in range(500)])
    assert keys.key_at(blocks("chat 7 ", 20)) == 0
    assert keys.key_at(blocks("new ", 20)) == 0


@pytest.mark.parametrize("num_shared", [1, 2, 3, 67, 68, 500])
def test_key_is_the_first_block_after_a_system_prompt(num_shared: int) -> None:
    system = blocks("system ", num_shared)
    keys = taught([system + blocks(f"chat {number} ", 5) for number in range(500)])
    assert keys.key_at(system + blocks("chat 7 ", 5)) == num_shared
    assert keys.key_at(system + blocks("new ", 9)) == num_shared


def test_each_of_several_system_prompts_is_passed() -> None:
    systems = [blocks(f"system {number} ", 30 + number) for number in range(8)]
    keys = taught([systems[number % 8] + blocks(f"chat {number} ", 5) for number in range(3000)])
    assert [keys.key_at(system + blocks("new ", 5)) for system in systems] == [len(system) for system in systems]


def test_conversation_keeps_its_key_while_it_grows() -> None:
    chance, system, keys = random.Random(1), blocks("system ", 40), PrefixKeys()
    turns, seen = [0] * 200, dict[int, set[int]]()
    for number in range(4000):
        chat = chance.randrange(200)
        turns[chat] += 1
        prompt = system + blocks(f"chat {chat} ", 3 * turns[chat])
        keys.count(prompt, SHARE)
        if number > 500:
            seen.setdefault(chat, set()).add(keys.key_at(prompt))
    assert set.union(*seen.values()) == {40}


def test_prompt_that_is_popular_as_a_whole_has_no_key() -> None:
    system = blocks("system ", 40)
    keys = taught([system] * 2 * LEAST_POPULAR)
    assert keys.key_at(system) == len(system)
    assert keys.key_at([]) == 0


def test_prefix_stays_popular_until_it_has_half_of_the_share() -> None:
    chance, keys, shared, numbers = random.Random(2), PrefixKeys(), blocks("system ", 4), count()

    def pass_prompts(number: int, share: float) -> None:
        for _ in range(number):
            own = blocks(f"chat {next(numbers)} ", 4)
            keys.count(shared + own if chance.random() < share else own, SHARE)

    pass_prompts(3 * GENERATION, 2 * SHARE)
    assert keys.key_at([*shared, b"new"]) == 4
    pass_prompts(3 * GENERATION, 0.8 * SHARE)
    assert keys.key_at([*shared, b"new"]) == 4
    pass_prompts(3 * GENERATION, 0.2 * SHARE)
    keys.count(shared, SHARE)
    assert keys.key_at([*shared, b"new"]) == 0


def test_memory_is_bounded_whatever_comes() -> None:
    """Prompts that are all different, and prompts that differ after a long popular part."""
    keys, popular = PrefixKeys(), blocks("system ", 300)
    for number in range(5 * GENERATION):
        keys.count(popular + blocks(f"chat {number} ", 40) if number % 2 else blocks(f"other {number} ", 300), SHARE)
    keys.validate()
    assert keys.num_counted <= 2 * GENERATION * 10


@given(st.lists(st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=9), max_size=80))
def test_key_is_a_block_of_the_prompt_or_its_end(prompts: list[list[bytes]]) -> None:
    keys = PrefixKeys()
    for prompt in prompts:
        chained = [b"".join(prompt[: end + 1]) for end in range(len(prompt))]
        keys.count(chained, 0.5)
        assert 0 <= keys.key_at(chained) <= len(chained)
        keys.validate()
