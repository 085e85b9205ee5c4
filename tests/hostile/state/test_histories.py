"""What turns follow is read by size: a chain has the bounds of a conversation, and few long ones fill no memory."""

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.state.lifecycle import ChatState
from api.state.postgres.stores.history_space import HistorySpace
from cluster.errors import Overloaded, TooManyRequests
from tests.hostile.state.conftest import HttpOf, TalkativeModel
from tests.hostile.state.test_bounds import KILO, code_of, said

TURN = {"model": "m", "input": "And?"}


async def a_chain(http: httpx.AsyncClient, *texts: str) -> str:
    """The last response of one that says these."""
    previous = None
    for text in texts:
        body = {"model": "m", "input": text} | ({"previous_response_id": previous} if previous else {})
        answer = await http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        previous = answer.json()["id"]
    assert previous is not None
    return previous


@pytest.mark.parametrize("limit", [{"max_conversation_bytes": 25 * KILO}, {"max_conversation_items": 4}], ids=str)
@pytest.mark.parametrize("store", [True, False])
async def test_chain_is_as_bounded_as_a_conversation(
    state: ChatState,
    state_with: Callable[..., Awaitable[ChatState]],
    http_of: HttpOf,
    limit: dict[str, int],
    store: bool,
) -> None:
    http = http_of(await state_with(**limit))
    turn = TURN | {"store": store}
    short = await a_chain(http, "x" * 10 * KILO)
    assert (await http.post("/v1/responses", json=turn | {"previous_response_id": short})).status_code == 200
    long = await a_chain(http, *["x" * 9 * KILO] * 3)
    refused = await http.post("/v1/responses", json=turn | {"previous_response_id": long})
    assert code_of(refused) == (400, "conversation_full")
    assert refused.json()["error"]["param"] == "previous_response_id"


async def test_turns_in_progress_share_the_memory_that_histories_may_take(
    state: ChatState, state_with: Callable[..., Awaitable[ChatState]], http_of: HttpOf, model: TalkativeModel
) -> None:
    limited = await state_with(max_histories_bytes=40 * KILO)
    alice, bob = http_of(limited), http_of(limited, "sk-bob")
    made = []
    for http in (alice, alice, bob):
        conversation = {"items": [said("x" * 15 * KILO)]}
        made.append((await http.post("/v1/conversations", json=conversation)).json()["id"])
    model.may_go_on.clear()
    first = asyncio.create_task(alice.post("/v1/responses", json=TURN | {"conversation": made[0]}))
    await asyncio.wait_for(model.asked(1), 5)
    refused = await alice.post("/v1/responses", json=TURN | {"conversation": made[1]})
    assert refused.status_code == 429 and refused.headers["retry-after"]
    others = asyncio.create_task(bob.post("/v1/responses", json=TURN | {"conversation": made[2]}))
    await asyncio.sleep(0)
    model.may_go_on.set()
    assert (await first).status_code == 200
    assert (await others).status_code == 200
    gc.collect()
    again = await alice.post("/v1/responses", json=TURN | {"conversation": made[1]})
    assert again.status_code == 200, "what the first turn had is given back"


def test_history_that_is_larger_than_all_the_space_is_read_alone() -> None:
    space = HistorySpace(100)
    alone = space.hold("alice", 1000)
    with pytest.raises(Overloaded):
        space.hold("bob", 1)
    del alone
    space.hold("bob", 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.booleans()), max_size=60))
def test_space_holds_no_more_than_it_has_and_gets_all_of_it_back(wanted: list[tuple[str, int, bool]]) -> None:
    space, held = HistorySpace(100), []
    for tenant, num_bytes, leaves in wanted:
        with contextlib.suppress(TooManyRequests, Overloaded):
            held.append((tenant, num_bytes, space.hold(tenant, num_bytes)))
        if leaves and held:
            held.pop(0)
        assert space.num_held == sum(size for _, size, _ in held)
        assert space.num_held <= 100
    held.clear()
    assert space.num_held == 0
