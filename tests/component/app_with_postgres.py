"""The HTTP application with a real PostgreSQL and a fake frontend, and OpenAI's official client in strict mode."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from api.context.manager import ContextManager
from api.frontend.frontend import Frontend
from api.http_app import gatekeeper_of
from api.identity.access import Access
from api.server.listener import HttpListener
from api.state.lifecycle import ChatState
from bench.fronts.free_ports import free_port
from cluster.config.ingress import IngressConfig
from tests.component.app_with_fakes import FakeFrontend, an_app, invented
from tests.component.emptied import as_superuser
from tests.component.open_access import OPEN
from tests.conformance.watch import RECORD, Record, watched

ClientOf = Callable[[str], AsyncOpenAI]


def without_syncs(url: str) -> None:
    """Let a server not wait for its disk. What is committed still outlives the server, and only not the machine."""
    with psycopg.connect(as_superuser(url), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")


@asynccontextmanager
async def clients_of(
    state: ChatState | None,
    frontend: FakeFrontend | Frontend,
    record: Record = RECORD,
    context: ContextManager | None = None,
    access: Access = OPEN,
    **config: Any,
) -> AsyncIterator[ClientOf]:
    """Clients by API key of a listening ingress with this `config`. Without `state`, it reaches none."""
    port = free_port()
    app = an_app(frontend, state=state, context=context, access=access, **config)
    listener = await HttpListener.start(app, gatekeeper_of(app.state.services, IngressConfig(port=port)), "baton")
    made: list[AsyncOpenAI] = []

    def client_of(key: str) -> AsyncOpenAI:
        http = watched(DefaultAsyncHttpxClient(), invented(frontend), record)
        options: dict[str, Any] = {"max_retries": 0, "http_client": http, "_strict_response_validation": True}
        made.append(AsyncOpenAI(api_key=key, base_url=f"http://127.0.0.1:{port}/v1", **options))
        return made[-1]

    try:
        yield client_of
    finally:
        for client in made:
            await client.close()
        await listener.close()
        await app.state.services.turns.drained(60)
        await app.state.services.completion_writer.drained()
        await app.state.services.titles.close()
        await app.state.services.context.close()
