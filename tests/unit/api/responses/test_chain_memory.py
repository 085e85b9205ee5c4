"""What connections remember stays within its bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.responses.chain_memory import MOST_ITEMS, ChainMemory, ChainSpace, packed
from api.wire.limits.structure import MAX_CONTAINERS, MAX_MEMBERS
from api.wire.responses.socket_messages import ResponseChain
from cluster.config.ingress import WebSocketConfig

CONFIG = WebSocketConfig(max_remembered_bytes=200, max_all_remembered_bytes=600)
TENANTS = ["one", "one", "one", "other", "third"]
"""The tenants of five connections."""
steps = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["remember", "forget", "clear"]), st.integers(0, 250)))


@given(steps)
def test_bytes_that_are_held_are_those_that_are_remembered(taken: list[tuple[int, str, int]]) -> None:
    space = ChainSpace(CONFIG)
    memories = [ChainMemory(space, tenant) for tenant in TENANTS]
    for number, step, size in taken:
        match step:
            case "remember":
                memories[number].remember(packed(ResponseChain("resp", None, [{"text": "x" * size}])))
            case "forget":
                memories[number].forget("resp")
            case _:
                memories[number].clear()
        held = [memory.num_bytes_of("resp") for memory in memories]
        assert sum(held) == space.num_held <= 600 and max(held) <= 200
        assert sum(held[:3]) <= 300  # the tenant's half
    for memory in memories:
        memory.clear()
    assert space.num_held == 0


def test_connections_of_one_tenant_leave_half_to_others() -> None:
    space, chain = ChainSpace(CONFIG), packed(ResponseChain("resp", None, [{"text": "x" * 100}]))
    for memory in [ChainMemory(space, "one") for _ in range(8)]:
        memory.remember(chain)
    other = ChainMemory(space, "other")
    other.remember(chain)
    assert other.chain_of("resp") == chain


def test_only_the_latest_response_is_remembered() -> None:
    memory = ChainMemory(ChainSpace(CONFIG), "one")
    chain = ResponseChain("resp_2", "resp_0", [{"text": "x"}])
    memory.remember(packed(ResponseChain("resp_1", None, [])))
    memory.remember(packed(chain))
    assert (memory.chain_of("resp_1"), memory.chain_of(None)) == (None, None)
    memory.forget("resp_1")
    found = memory.chain_of("resp_2")
    assert found is not None and found.unpacked() == chain


@pytest.mark.parametrize(
    ("items", "is_remembered"),
    [
        ([{}] * MOST_ITEMS, True),
        ([{}] * (MOST_ITEMS + 1), False),
        ([{"parts": [{}] * (MAX_CONTAINERS - 3)}], True),
        ([{"parts": [{}] * MAX_CONTAINERS}], False),
        ([dict.fromkeys(map(str, range(MAX_MEMBERS + 1)), "")], False),
    ],
)
def test_chain_that_a_body_could_not_have_is_not_remembered(items: list[dict[str, Any]], is_remembered: bool) -> None:
    memory = ChainMemory(space := ChainSpace(WebSocketConfig()), "one")
    memory.remember(packed(ResponseChain("resp", None, items)))
    assert (memory.chain_of("resp") is not None) is is_remembered is (space.num_held > 0)
