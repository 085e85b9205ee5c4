"""A listening ingress with a fake model, and WebSocket clients of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from api.charging.charging import Charging
from api.http_app import gatekeeper_of
from api.identity.access import Access
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from bench.fronts.free_ports import free_port
from cluster.config.ingress import IngressConfig, WebSocketConfig
from tests.component.app_with_fakes import FakeFrontend, an_app
from tests.component.open_access import OPEN
from tests.conformance.watched_socket import watched_connection

PATIENCE_S = 10.0
LAST = ("response.completed", "response.incomplete", "response.failed", "error")


class SocketService:
    def __init__(self, app: FastAPI, listener: HttpListener, gatekeeper: Gatekeeper, port: int) -> None:
        self.app = app
        self.listener = listener
        self.gatekeeper = gatekeeper
        self.port = port
        self._open: list[ClientConnection] = []

    async def connection(self, **options: Any) -> ClientConnection:
        """Raises InvalidStatus if the service refuses it."""
        self._open.append(await watched_connection(self.port, **options))
        return self._open[-1]

    async def refusal(self, **options: Any) -> tuple[int, str]:
        """The status and the code of the error with which a connection is refused."""
        try:
            await self.connection(**options)
        except InvalidStatus as refused:
            error = json.loads(refused.response.body or b"")["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            return refused.response.status_code, error["code"]
        raise AssertionError("the connection was opened")

    async def get(self, path: str, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}") as client:
            return await client.get(path, headers=headers)

    async def close(self) -> None:
        for one in self._open:
            one.transport.abort()


@asynccontextmanager
async def socket_service(
    frontend: FakeFrontend,
    access: Access = OPEN,
    sockets: dict[str, Any] | None = None,
    state: Any = None,
    charging: Charging | None = None,
    **config: Any,
) -> AsyncIterator[SocketService]:
    """`sockets`: fields of WebSocketConfig. `config`: fields of IngressConfig."""
    config["websockets"] = WebSocketConfig(**sockets or {})
    app, port = an_app(frontend, state=state, access=access, charging=charging, **config), free_port()
    gatekeeper = gatekeeper_of(app.state.services, IngressConfig(port=port, **config))
    listener = await HttpListener.start(app, gatekeeper, "baton")
    service = SocketService(app, listener, gatekeeper, port)
    try:
        yield service
    finally:
        await service.close()
        await asyncio.wait_for(listener.close(), PATIENCE_S)
        await app.state.services.turns.drained(PATIENCE_S)


async def ask(connection: ClientConnection, **message: Any) -> None:
    """Ask for a response that is not stored, unless `message` says otherwise."""
    asked = {"type": "response.create", "model": "m", "input": "Hello", "store": False}
    await connection.send(json.dumps(asked | message))


async def events(connection: ClientConnection) -> list[dict[str, Any]]:
    """Those of the next response, or one error."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_S):
        while not found or found[-1]["type"] not in LAST:
            found.append(json.loads(await connection.recv()))
    return found


async def answer(connection: ClientConnection, **message: Any) -> dict[str, Any]:
    """The last event of a response, or an error."""
    await ask(connection, **message)
    return (await events(connection))[-1]


async def code_at_the_end(connection: ClientConnection) -> int:
    """The code with which the service closes the connection, whatever comes before."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while True:
                await connection.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006
