"""What the connections of one client take of a replica that all share: the memory of bodies, the memory for chains, and
the event loop.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from api.frontend.checking_thread import in_checking_thread
from api.identity.access import Access
from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS
from tests.component.answering import Model
from tests.component.socket_service import answer, ask, events, socket_service

PART = {"type": "input_text", "text": ""}
LARGE_CHAINS: dict[str, Any] = {
    "a text": "x" * 300_000,
    "parts": [{"role": "user", "content": [PART] * 40}] * 130,
}


async def _whose(credential: str) -> Principal:
    return Principal(tenant=credential[-1] * 16, project="p", key="k", rights=ALL_RIGHTS)


@asynccontextmanager
async def busy_checking_thread() -> AsyncIterator[None]:
    """What runs in the checking thread waits meanwhile."""
    may_end = threading.Event()
    occupied = asyncio.create_task(in_checking_thread(may_end.wait))
    try:
        yield
    finally:
        may_end.set()
        await occupied


async def test_messages_that_wait_take_from_the_memory_of_bodies() -> None:
    """Each of them is short enough to be free alone."""
    model = Model()
    model.may_go_on.clear()
    text = "x" * 60_000
    async with socket_service(model, max_bodies_bytes=200_000, max_body_bytes=200_000) as service:
        connection, budget = await service.connection(), service.gatekeeper.budget
        await ask(connection, input=text)
        await model.asked(1)
        for _ in range(6):
            await ask(connection, input=text)
            await (await connection.ping())  # the message has been read
        assert 100_000 < budget.num_held <= 200_000
        while (event := json.loads(await connection.recv()))["type"] != "error":
            pass
        assert (event["status"], event["error"]["code"]) == (503, "engine_overloaded")
        model.may_go_on.set()
        ends = [(await events(connection))[-1]["type"] for _ in range(6)]
        assert ends.count("response.completed") == 4  # the first one, and those for which there was memory
        assert (await answer(connection, input=text))["type"] == "response.completed"
        assert budget.num_held == 0


async def test_values_of_a_chain_take_the_memory_that_is_made_of_them() -> None:
    async with socket_service(Model(), max_bodies_bytes=1 << 20, max_body_bytes=1 << 20) as service:
        connection = await service.connection()
        long = await answer(connection, generate=False, input=[{"role": "user", "content": "x"}] * 2000)
        assert service.app.state.services.chain_space.num_held < 1 << 19
        refused = await answer(connection, input="x", previous_response_id=long["response"]["id"])
        assert (refused["status"], refused["error"]["code"]) == (503, "engine_overloaded")
        assert (await answer(connection))["type"] == "response.completed"
        assert service.gatekeeper.budget.num_held == 0


async def test_chains_of_one_tenant_leave_memory_to_others() -> None:
    access = Access(_whose, is_required=True)
    bounds = {"max_remembered_bytes": 2000, "max_all_remembered_bytes": 6000}
    async with socket_service(Model(), access=access, sockets=bounds) as service:

        async def follows(credential: str) -> bool:
            connection = await service.connection(additional_headers={"authorization": f"Bearer {credential}"})
            first = await answer(connection, generate=False, input="x" * 1200)
            following = await answer(connection, generate=False, previous_response_id=first["response"]["id"])
            return following["type"] == "response.completed"

        assert [await follows("sk-a") for _ in range(5)] == [True, True, False, False, False]
        assert await follows("sk-b")


@pytest.mark.parametrize("chain", LARGE_CHAINS.values(), ids=LARGE_CHAINS)
async def test_large_chain_that_a_short_message_follows_does_not_hold_up_others(chain: Any) -> None:
    """The work for it waits for the checking thread, and others do not."""
    model = Model()
    async with socket_service(model) as service:
        large, other = await service.connection(), await service.connection()
        prepared = await answer(large, generate=False, input=chain)
        async with busy_checking_thread():
            await ask(large, input="x", previous_response_id=prepared["response"]["id"])
            await (await large.ping())  # the message has been read
            assert (await answer(other))["type"] == "response.completed"
            assert len(model.bodies) == 1  # of the other connection
        assert (await events(large))[-1]["type"] == "response.completed"
