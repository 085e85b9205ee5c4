"""What connections remember stays within its bounds."""

from hypothesis import given
from hypothesis import strategies as st

from api.responses.chain_memory import ChainMemory, ChainSpace
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


def test_only_the_latest_response_is_remembered() -> None:
    memory = ChainMemory(ChainSpace(CONFIG))
    chain = ResponseChain("resp_2", "resp_0", [{"text": "x"}])
    memory.remember(ResponseChain("resp_1", None, []))
    memory.remember(chain)
    assert (memory.chain_of("resp_1"), memory.chain_of(None)) == (None, None)
    assert memory.chain_of("resp_2") == chain
    memory.forget("resp_1")
    assert memory.chain_of("resp_2") == chain
