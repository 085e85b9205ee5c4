"""The HTTP listener on a real socket, before applications that a test controls."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from api.edge.capacity import Capacity
from api.edge.edge import Edge
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from cluster.config.ingress import IngressConfig
from tests.component.open_access import OPEN

SERVICE = "baton"
START = {"type": "http.response.start", "status": 200, "headers": []}


class App:
    """Reads the body, says so, and answers when it is told to, in one piece or with a first chunk at once."""

    def __init__(self, *, streams: bool = False) -> None:
        self._streams = streams
        self.asked = asyncio.Event()
        self.started = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.set()
        while (await receive()).get("more_body"):
            pass
        try:
            if self._streams:
                await send(START)
                await send({"type": "http.response.body", "body": b"first ", "more_body": True})
            self.started.set()
            await self.may_answer.wait()
            if not self._streams:
                await send(START)
            await send({"type": "http.response.body", "body": b"last"})
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def answering() -> App:
    """Answers at once."""
    app = App()
    app.may_answer.set()
    return app


@asynccontextmanager
async def listening(
    app: App, gatekeeper: Gatekeeper | None = None, **options: Any
) -> AsyncIterator[tuple[HttpListener, httpx.AsyncClient]]:
    gatekeeper = gatekeeper or a_gatekeeper(**options)
    config = gatekeeper.config
    listener = await HttpListener.start(
        Edge(app, config, Capacity(config.max_ongoing_requests), OPEN), gatekeeper, SERVICE
    )
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{config.port}", headers=headers, timeout=5) as client:
        yield listener, client
    app.may_answer.set()
    await asyncio.wait_for(listener.close(), 5)


def a_gatekeeper(**options: Any) -> Gatekeeper:
    return Gatekeeper(IngressConfig(port=free_port(), **options))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def left_by_the_client(app: App, client: httpx.AsyncClient) -> None:
    request = asyncio.create_task(client.post("/v1/", content=b"x" * 200_000))
    await asyncio.wait_for(app.started.wait(), 5)
    request.cancel()
    await asyncio.wait([request])


@pytest.mark.parametrize("streams", [False, True])
async def test_client_that_leaves_cancels_its_request_at_once(streams: bool) -> None:
    app = App(streams=streams)
    async with listening(app) as (_, client):
        await left_by_the_client(app, client)
        await asyncio.wait_for(app.cancelled.wait(), 5)


@pytest.mark.parametrize("streams", [False, True])
async def test_client_that_stays_gets_its_whole_answer(streams: bool) -> None:
    app = App(streams=streams)
    async with listening(app) as (_, client):
        request = asyncio.create_task(client.post("/", content=b"body"))
        await asyncio.wait_for(app.started.wait(), 5)
        app.may_answer.set()
        assert (await request).text == ("first last" if streams else "last")
        assert (await client.post("/", content=b"again")).status_code == 200
    assert not app.cancelled.is_set()


@pytest.mark.parametrize("taken_by", ["POST /", "GET /v1/responses/resp_1?stream=true"])
@pytest.mark.parametrize("refused", ["POST /", "GET /v1/responses/resp_1?starting_after=5&stream=1"])
async def test_more_requests_than_it_may_take_are_told_to_come_back(taken_by: str, refused: str) -> None:
    app = App()
    async with listening(app, max_ongoing_requests=1) as (_, client):
        taken = asyncio.create_task(client.request(*taken_by.split()))
        await asyncio.wait_for(app.started.wait(), 5)
        answer = await client.request(*refused.split())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_overloaded")
        assert int(answer.headers["retry-after"]) >= 1
        app.may_answer.set()
        assert (await taken).text == "last"


@pytest.mark.parametrize(
    "path", ["/healthz", "/healthz?stream=true", "/v1/responses/resp_1", "/v1/responses/resp_1?stream=no"]
)
async def test_full_replica_still_answers_what_takes_no_time(path: str) -> None:
    app = App()
    async with listening(app, max_ongoing_requests=1) as (_, client):
        taken = asyncio.create_task(client.post("/"))
        await asyncio.wait_for(app.started.wait(), 5)
        healthy = asyncio.create_task(client.get(path))
        app.may_answer.set()
        assert (await healthy).status_code == 200
        await taken


async def test_client_that_leaves_while_it_sends_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    app, gatekeeper = App(), a_gatekeeper()
    async with listening(app, gatekeeper) as (_, client):
        _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        writer.write(head + b"only this")
        await writer.drain()
        await until(lambda: gatekeeper.connections.open)
        writer.transport.abort()
        await until(lambda: not gatekeeper.connections.open)
    assert not app.asked.is_set()
    assert "Exception" not in caplog.text


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # of the kernel's and asyncio's making, which tell nobody
            await asyncio.sleep(0)


async def test_closing_finishes_open_requests_and_takes_no_new_ones() -> None:
    app = App()
    async with listening(app) as (listener, client):
        request = asyncio.create_task(client.post("/"))
        await asyncio.wait_for(app.started.wait(), 5)
        closing = asyncio.create_task(listener.close())
        while not await refuses(client):
            pass
        app.may_answer.set()
        assert (await request).text == "last"
        await asyncio.wait_for(closing, 5)
        with pytest.raises(RuntimeError, match="listener has ended"):
            listener.check_health()


async def refuses(client: httpx.AsyncClient) -> bool:
    async with httpx.AsyncClient(base_url=client.base_url, timeout=1) as other:
        try:
            await other.get("/", timeout=0.2)
        except httpx.ConnectError:
            return True
        except httpx.HTTPError:
            return False
    return False
