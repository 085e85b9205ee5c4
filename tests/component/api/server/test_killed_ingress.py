"""An ingress is killed at each moment of a turn: what its conversation holds then."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import httpx2
import psycopg
import pytest
from openai import APIConnectionError, AsyncOpenAI
from openai.types.conversations import Message

from api.frontend.generation import Call
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from api.state.event_streams import orphans
from api.state.lifecycle import ChatState
from api.state.postgres.stores.responses import GENERATION_CLAIM
from bench.fronts.free_ports import free_port
from cluster.config.ingress import IngressConfig
from cluster.config.state import StateConfig
from tests.component.answering import Model, frame, texts
from tests.component.app_with_fakes import FakeFrontend, an_app
from tests.component.app_with_postgres import clients_of
from tests.component.openai_objects import response_of
from tests.expected import of_kind
from tests.unit.chat_chunks import answer

WORDS = [f"{number} " for number in range(20)]
MOMENTS = ("admitted", "first chunk", "midway", "ended", "written")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(FakeFrontend):
    """Counts, and is killed at its moment."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self._moment = moment

    async def chat_completion(self, body: Any, call: Call) -> AsyncGenerator[str, None]:
        if self._moment == "admitted":
            die()
        return self._told(call)

    async def _told(self, call: Call) -> AsyncGenerator[str, None]:
        call.placement = self.placement
        for number, chunk in enumerate(answer(*WORDS)):
            yield frame(chunk)
            if (self._moment, number) in (("first chunk", 1), ("midway", len(WORDS) // 2)):
                await asyncio.sleep(0.2)  # its client has seen what it has told
                die()


def serve(moment: str, port: int, state: StateConfig) -> None:
    asyncio.run(_serve(moment, port, state))


async def _serve(moment: str, port: int, config: StateConfig) -> None:
    state = ChatState(config)
    await state.look()
    finish = state.stores.responses.finish

    async def finish_and_die(*written: Any) -> Any:
        if moment == "written":
            await finish(*written)
        die()

    if moment in ("ended", "written"):
        setattr(state.stores.responses, "finish", finish_and_die)  # noqa: B010  # mypy lets no method be replaced
    listener = await HttpListener.start(
        an_app(Mortal(moment), state=state), Gatekeeper(IngressConfig(port=port)), "baton"
    )
    await asyncio.Event().wait()
    await listener.close()


@pytest.fixture
async def survivor(state: ChatState, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncOpenAI]:
    """The same client, of an ingress that lives."""
    monkeypatch.setattr(orphans, "GENERATION_CLAIM", timedelta(0))
    async with clients_of(state, Model()) as found:
        yield found("sk-alice")


@pytest.mark.parametrize("moment", MOMENTS)
async def test_conversation_is_whole(
    survivor: AsyncOpenAI, state: ChatState, postgres: str, redis: str, tmp_path: Path, moment: str
) -> None:
    port = free_port()
    config = StateConfig(database_url=postgres, redis_url=redis, data_dir=str(tmp_path), titles=False)
    ingress = multiprocessing.get_context("fork").Process(target=serve, args=(moment, port, config))
    ingress.start()
    conversation = await survivor.conversations.create()
    seen: list[Any] = []
    async with AsyncOpenAI(api_key="sk-alice", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as client:
        await reached(port)
        with suppress(APIConnectionError, httpx.HTTPError, httpx2.HTTPError):
            options: Any = {"model": "m", "input": "Count", "conversation": conversation.id, "stream": True}
            async for event in await client.responses.create(**options):
                seen.append(event)
    await asyncio.to_thread(ingress.join, 10)
    assert ingress.exitcode == -signal.SIGKILL
    await end_orphans(state, postgres)

    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        ((response, status),) = connection.execute("SELECT id, status FROM responses").fetchall()
    told = "".join(WORDS)
    said = await texts(survivor, conversation.id)
    assert said[0] == "Count" and len(said) <= 2
    assert status == ("completed" if moment == "written" else "failed")
    kept, heard = "".join(said[1:]), "".join(event.delta for event in seen if event.type.endswith("text.delta"))
    assert told.startswith(kept) and kept.startswith(heard)
    assert bool(heard) is (moment in ("first chunk", "midway")) and (moment != "written" or kept == told)
    if kept and moment != "written":
        (item,) = (await survivor.conversations.items.list(conversation.id, limit=1)).data
        assert of_kind(Message, item).status == "incomplete"
    events = [event async for event in await survivor.responses.retrieve(response, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert response_of(events[-1]).status == status
    await survivor.responses.create(model="m", input="And now?", conversation=conversation.id)
    assert len(await texts(survivor, conversation.id)) == len(said) + 2


async def reached(port: int) -> None:
    async with httpx.AsyncClient() as http:
        for _ in range(1000):
            with suppress(httpx.TransportError):
                await http.get(f"http://127.0.0.1:{port}/healthz")
                return
            await asyncio.sleep(0.01)
    raise TimeoutError


async def end_orphans(state: ChatState, postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT set_config('app.tenant_id', '*', true)")
        connection.execute("UPDATE responses SET lease_until = now() - %s", [GENERATION_CLAIM])
    await state.stores.orphans.end()
