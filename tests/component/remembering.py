"""The HTTP surface over a real PostgreSQL, and the official client in strict mode."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from openai import AsyncOpenAI

from api.context.manager import ContextManager
from api.listener import HttpListener
from api.state.chat_state import ChatState
from bench.fronts.ports import free_port
from cluster.config import IngressConfig
from tests.component.surface import FakeFrontend, an_app

ClientOf = Callable[[str], AsyncOpenAI]


def emptied(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@asynccontextmanager
async def clients_of(
    state: ChatState | None, frontend: FakeFrontend, context: ContextManager | None = None
) -> AsyncIterator[ClientOf]:
    """By API key, of a listening ingress. `state`: None for one that cannot be reached."""
    port = free_port()
    app = an_app(frontend, state=state, context=context)
    listener = await HttpListener.start(app, IngressConfig(port=port))
    made: list[AsyncOpenAI] = []

    def client_of(key: str) -> AsyncOpenAI:
        options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
        made.append(AsyncOpenAI(api_key=key, base_url=f"http://127.0.0.1:{port}/v1", **options))
        return made[-1]

    yield client_of
    for client in made:
        await client.close()
    await listener.close()
    await app.state.turns.drained()
    await app.state.context.close()
