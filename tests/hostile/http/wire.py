"""The HTTP listener and the edge on a real socket, and clients that send any bytes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from api.edge.capacity import Capacity
from api.edge.edge import Edge
from api.server.listener import HttpListener
from api.server.protocol import Gatekeeper
from cluster.config.ingress import IngressConfig
from tests.component.open_access import OPEN

PATIENCE_S = 5.0
GET = b"GET /v1/echo HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    """`length` is the Content-Length that the request names. None for the length of `body`."""
    lines = [
        b"POST /v1/echo HTTP/1.1",
        b"Host: localhost",
        b"Content-Type: application/json",
        b"Content-Length: %d" % (len(body) if length is None else length),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of an error, which must have OpenAI's shape."""
        error = json.loads(self.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return str(error["code"])


class Echo:
    """Answers with method and path of the request when `may_answer` is set. At first it is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.num_asked = 0
        self.left = asyncio.Event()
        """Set when a client has left before its answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_asked += 1
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        body = json.dumps({"method": scope["method"], "path": scope["path"]}).encode()
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def answer(self, *, has_body: bool = True) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            length = int(headers.get("content-length", 0)) if has_body else 0
            return Answer(int(first.split()[1]), headers, await self._reader.readexactly(length))

    async def asked(self, *parts: bytes) -> Answer:
        await self.send(*parts)
        return await self.answer()

    async def is_closed(self) -> bool:
        """Whether the server closes the connection in time, without a further byte."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._reader.read() == b""
            except ConnectionError:
                return True


class Wire:
    def __init__(self, app: Any, gatekeeper: Gatekeeper, port: int) -> None:
        self.app = app
        self.gatekeeper = gatekeeper
        self.port = port
        self._open: list[Connection] = []

    async def connection(self) -> Connection:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        self._open.append(connection)
        return connection

    async def asked(self, *parts: bytes) -> Answer:
        """The answer to bytes that a new connection sends."""
        return await (await self.connection()).asked(*parts)

    @property
    def num_open(self) -> int:
        return len(self.gatekeeper.connections.open)

    def close(self) -> None:
        while self._open:
            self._open.pop().writer.close()


@asynccontextmanager
async def listening(app: Any = None, **options: Any) -> AsyncIterator[Wire]:
    """A listener in front of `app`. `options` are fields of IngressConfig."""
    config = IngressConfig(port=free_port(), **options)
    behind = Echo() if app is None else app
    gatekeeper = Gatekeeper(config)
    listener = await HttpListener.start(
        Edge(behind, config, Capacity(config.max_ongoing_requests), OPEN), gatekeeper, "baton"
    )
    wire = Wire(behind, gatekeeper, config.port)
    try:
        yield wire
    finally:
        wire.close()
        await asyncio.wait_for(listener.close(), PATIENCE_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
