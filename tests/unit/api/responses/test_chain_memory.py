"""What connections remember stays within its bounds."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.responses.chain_memory import MOST_ITEMS, PART_ITEMS, ChainMemory, ChainSpace
from api.wire.responses.socket_messages import ResponseChain
from cluster.config.ingress import WebSocketConfig

CONFIG = WebSocketConfig(max_remembered_bytes=200, max_all_remembered_bytes=300)
steps = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["remember", "forget", "clear"]), st.integers(0, 250)))


@given(steps)
def test_bytes_that_are_held_are_those_that_are_remembered(taken: list[tuple[int, str, int]]) -> None:
    space = ChainSpace(CONFIG)
    memories = [ChainMemory(space) for _ in range(3)]
    for number, step, size in taken:
        match step:
            case "remember":
                memories[number].remember(ResponseChain("resp", None, [{"text": "x" * size}]))
            case "forget":
                memories[number].forget("resp")
            case _:
                memories[number].clear()
        held = [memory.num_bytes_of("resp") for memory in memories]
        assert sum(held) == space.num_held <= 300 and max(held) <= 200
    for memory in memories:
        memory.clear()
    assert space.num_held == 0


async def test_only_the_latest_response_is_remembered() -> None:
    memory = ChainMemory(ChainSpace(CONFIG))
    chain = ResponseChain("resp_2", "resp_0", [{"text": "x"}])
    memory.remember(ResponseChain("resp_1", None, []))
    memory.remember(chain)
    assert (await memory.chain_of("resp_1"), await memory.chain_of(None)) == (None, None)
    assert await memory.chain_of("resp_2") == chain
    memory.forget("resp_1")
    assert await memory.chain_of("resp_2") == chain


@pytest.mark.parametrize("number", [0, 1, PART_ITEMS, PART_ITEMS + 1, 3 * PART_ITEMS])
async def test_long_chain_is_decoded_in_parts(number: int) -> None:
    memory, turns = ChainMemory(ChainSpace(WebSocketConfig())), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    chain = ResponseChain("resp", "resp_0", [{"number": one} for one in range(number)])
    memory.remember(chain)
    beside = asyncio.create_task(others())
    assert await memory.chain_of("resp") == chain
    assert turns >= number // PART_ITEMS - 1
    beside.cancel()


async def test_chain_of_too_many_items_is_not_remembered() -> None:
    memory = ChainMemory(space := ChainSpace(WebSocketConfig()))
    memory.remember(ResponseChain("resp", None, [{}] * (MOST_ITEMS + 1)))
    assert await memory.chain_of("resp") is None and space.num_held == 0
    memory.remember(ResponseChain("resp", None, [{}] * MOST_ITEMS))
    assert await memory.chain_of("resp") is not None
