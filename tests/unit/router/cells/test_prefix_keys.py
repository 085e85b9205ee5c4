"""PrefixKeys: which block of a prompt stands for its conversation."""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cells.prefix_keys import GENERATION, LEAST_POPULAR, PrefixKeys

SHARE = 1 / 16


def blocks(name: str, number: int) -> list[bytes]:
    return [f"{name}{index}".encode() for index in range(number)]


def passed(prompts: list[list[bytes]], num_open: int = 20, keys: PrefixKeys | None = None) -> PrefixKeys:
    """The requests come one after another. `num_open` are open at a time, and none in the end."""
    keys, still_open = keys or PrefixKeys(), deque[list[bytes]]()
    for prompt in prompts:
        still_open.append(keys.opened(prompt, SHARE))
        if len(still_open) == num_open:
            keys.closed(still_open.popleft())
    keys.validate()
    while still_open:
        keys.closed(still_open.popleft())
    return keys


def test_first_block_is_the_key_where_nothing_is_popular() -> None:
    keys = passed([blocks(f"chat {number} ", 20) for number in range(500)])
    assert keys.key_at(blocks("chat 7 ", 20)) == 0
    assert keys.key_at(blocks("new ", 20)) == 0


@pytest.mark.parametrize("num_shared", [1, 2, 3, 67, 68, 500])
def test_key_is_the_first_block_after_a_system_prompt(num_shared: int) -> None:
    system = blocks("system ", num_shared)
    keys = passed([system + blocks(f"chat {number} ", 5) for number in range(200)])
    assert keys.key_at(system + blocks("chat 7 ", 5)) == num_shared
    assert keys.key_at(system + blocks("new ", 9)) == num_shared


def test_each_of_several_system_prompts_is_passed() -> None:
    systems = [blocks(f"system {number} ", 30 + number) for number in range(8)]
    keys = passed([systems[number % 8] + blocks(f"chat {number} ", 5) for number in range(1000)], num_open=100)
    assert [keys.key_at(system + blocks("new ", 5)) for system in systems] == [len(system) for system in systems]


def test_conversation_keeps_its_key_while_it_grows() -> None:
    chance, system, keys = random.Random(1), blocks("system ", 40), PrefixKeys()
    turns, seen, still_open = [0] * 200, set[int](), deque[list[bytes]]()
    for number in range(4000):
        chat = chance.randrange(200)
        turns[chat] += 1
        prompt = system + blocks(f"chat {chat} ", 3 * turns[chat])
        still_open.append(keys.opened(prompt, SHARE))
        if len(still_open) > 20:
            keys.closed(still_open.popleft())
        if number > 200:
            seen.add(keys.key_at(prompt))
    assert seen == {40}


def test_few_conversations_that_ask_without_end_keep_their_keys() -> None:
    """Each of them has a third of all requests, but one open request."""
    prompts = [blocks(f"chat {number % 3} ", 1 + number // 3) for number in range(3000)]
    keys = passed(prompts, num_open=3)
    assert {keys.key_at(prompt) for prompt in prompts} == {0}


def test_prompt_that_is_popular_as_a_whole_has_no_key() -> None:
    system = blocks("system ", 40)
    keys = passed([system] * 6 * LEAST_POPULAR)
    assert keys.key_at(system) == len(system)
    assert keys.key_at([]) == 0


def test_prefix_stays_popular_for_a_generation_after_its_rush() -> None:
    shared, others = blocks("system ", 4), [blocks(f"other {number} ", 4) for number in range(GENERATION)]
    keys = passed([shared + blocks(f"chat {number} ", 4) for number in range(50)])
    passed(others[:-50], keys=keys)
    assert keys.key_at([*shared, b"new"]) == 4
    passed(others[:100], keys=keys)
    assert keys.key_at([*shared, b"new"]) == 4
    passed(others, keys=keys)
    assert keys.key_at([*shared, b"new"]) == 0


def test_popular_is_what_is_many_of_the_open_requests() -> None:
    rare = blocks("rare ", 4)
    keys = passed([rare if number % 20 == 0 else blocks(f"{number} ", 4) for number in range(4000)], num_open=1000)
    assert keys.key_at([*rare, b"new"]) == 0


@pytest.mark.parametrize("num_different", [1, GENERATION // 8, 10**6])
def test_memory_is_bounded_whatever_comes(num_different: int) -> None:
    """The same prompt again and again, prompts in groups that are popular each, and prompts that share a part."""
    keys, popular, counted = PrefixKeys(), blocks("system ", 300), deque[list[bytes]]()
    for number in range(5 * GENERATION):
        counted.append(keys.opened(popular[: number % 300] + blocks(f"{number // 8 % num_different} ", 300), SHARE))
        if len(counted) > 100:
            keys.closed(counted.popleft())
        assert keys.num_remembered <= 100 * 40 + 2 * GENERATION / LEAST_POPULAR * 40
    while counted:
        keys.closed(counted.popleft())
    keys.validate()
    assert keys.num_remembered <= 2 * GENERATION / LEAST_POPULAR * 40


@given(st.lists(st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=9), max_size=80))
def test_key_is_a_block_of_the_prompt_or_its_end(prompts: list[list[bytes]]) -> None:
    keys = PrefixKeys()
    for prompt in prompts:
        chained = [b"".join(prompt[: end + 1]) for end in range(len(prompt))]
        keys.opened(chained, 0.5)
        assert 0 <= keys.key_at(chained) <= len(chained)
        keys.validate()
