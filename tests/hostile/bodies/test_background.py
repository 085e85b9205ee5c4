"""A response in the background counts as long as it runs, even if no client waits for it."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, RateLimitError
from openai.types.responses import Response

from api.state.lifecycle import ChatState
from tests.component.answering import Model
from tests.component.app_with_postgres import clients_of


@pytest.fixture
def model() -> Model:
    model = Model()
    model.waiting = set(range(1, 100))
    model.may_go_on.clear()
    return model


async def test_a_tenant_has_its_part_of_them_until_they_end(state: ChatState, model: Model) -> None:
    limits: dict[str, Any] = {"max_background_responses": 3, "max_background_responses_per_tenant": 2}
    async with clients_of(state, model, **limits) as clients:
        alice, bob = clients("sk-alice").with_options(max_retries=0), clients("sk-bob").with_options(max_retries=0)

        async def started(client: AsyncOpenAI) -> Response:
            return await client.responses.create(model="m", input="Hello", background=True)

        async def refused(client: AsyncOpenAI) -> None:
            with pytest.raises(RateLimitError) as error:
                await started(client)
            assert int(error.value.response.headers["retry-after"]) >= 1

        held = [await started(alice) for _ in range(2)]
        await refused(alice)
        await started(bob)
        await refused(bob)  # the limit of all tenants together
        await alice.responses.cancel(held[0].id)
        async with asyncio.timeout(5):
            while True:
                try:
                    await started(alice)
                    break
                except RateLimitError:
                    await asyncio.sleep(0.01)
        model.may_go_on.set()
