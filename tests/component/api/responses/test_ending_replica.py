"""Stored turns that still run when their replica ends: real PostgreSQL, and a model that does not go on."""

import asyncio
from contextlib import suppress

import openai
import psycopg
import pytest

from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from api.state.lifecycle import ChatState
from bench.fronts.free_ports import free_port
from cluster.config.ingress import IngressConfig
from tests.component.answering import Model
from tests.component.app_with_fakes import an_app


@pytest.mark.parametrize("is_background", [False, True])
async def test_turn_that_outlasts_its_replica_is_stored_as_failed(
    state: ChatState, postgres: str, is_background: bool
) -> None:
    model, port = Model(), free_port()
    model.may_go_on.clear()
    app = an_app(model, state=state)
    listener = await HttpListener.start(app, Gatekeeper(IngressConfig(port=port, drain_s=1.0)), "baton")
    async with openai.AsyncOpenAI(api_key="sk-a", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as client:
        asking = asyncio.create_task(
            client.responses.create(model="m", input="hi", background=is_background)
            if is_background
            else client.responses.create(model="m", input="hi")
        )
        await model.asked(1)
        await listener.close()
        await asyncio.wait_for(app.state.services.turns.drained(0.1), 10)
        with suppress(openai.APIError):
            await asking
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        assert connection.execute("SELECT status FROM responses").fetchall() == [("failed",)]
