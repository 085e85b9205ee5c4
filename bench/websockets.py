"""What WebSockets of /v1/responses cost an ingress replica: memory of idle ones, and CPU and first token against SSE.

    make bench-websockets [ARGS="--connections 10000"]

The replica is a process of its own, with a model that gives tokens without an engine. Its memory is read before and
after the connections are opened. Responses over both transports take turns, on one open connection each. The client is
this program over a bare connection, so that no library's time is in a figure.
"""

import argparse
import asyncio
import base64
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from statistics import median
from typing import Any, NamedTuple

from bench.fronts.free_ports import free_port

PER_ADDRESS = 2000
"""Connections from one source address: the ingress limits them."""
TOKENS = 2000
ROUNDS = 12
OPENING = 200
"""Connections that are being opened at the same time."""
OTHER_FILES = 200
MOST_EVENT_BYTES = 16 << 20
TASKS, STEPS, STEP_TOKENS = 4, 20, 50
"""Tasks of an agent, its steps, and tokens of each answer."""
FIRST_WORDS, RESULT_WORDS = 30_000, 300
"""Words of a task's first input, and those that each further step adds."""
BODY = {"model": "m", "input": "Hello", "store": False}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def serve(port: int, connections: int) -> None:
    """The replica."""
    from api.http_app import gatekeeper_of
    from api.server.listener import HttpListener
    from cluster.config.ingress import IngressConfig
    from tests.component.app_with_fakes import FakeFrontend, an_app
    from tests.unit.chat_chunks import answer

    role, text, *rest = (f"data: {json.dumps(chunk)}\n\n" for chunk in answer("token "))

    class Tokens(FakeFrontend):
        async def chat_completion(self, body: Any, call: Any) -> Any:
            return self._told(body.get("max_completion_tokens") or body.get("max_tokens") or TOKENS)

        async def _told(self, number: int) -> AsyncGenerator[str, None]:
            yield role
            for _ in range(number):
                yield text
                await asyncio.sleep(0)
            for other in rest:
                yield other

    limits: dict[str, Any] = {"max_connections": connections + 100, "max_connections_per_address": PER_ADDRESS + 100}
    app = an_app(Tokens(), **limits)
    gatekeeper = gatekeeper_of(app.state.services, IngressConfig(port=port, **limits))
    await HttpListener.start(app, gatekeeper, "baton")
    print("ready", flush=True)
    await asyncio.Event().wait()


class Replica:
    def __init__(self, connections: int) -> None:
        self.port = free_port()
        command = [
            sys.executable,
            "-m",
            "bench.websockets",
            "--serve",
            str(self.port),
            "--connections",
            str(connections),
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit("the replica did not start")

    def rss_kib(self) -> int:
        with open(f"/proc/{self._process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def cpu_s(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


async def opened(port: int, number: int) -> list[socket.socket]:
    """WebSockets from as many source addresses as they need."""
    loop, turn = asyncio.get_running_loop(), asyncio.Semaphore(OPENING)

    async def one(index: int) -> socket.socket:
        async with turn:
            connection = socket.socket()
            connection.setblocking(False)
            connection.bind((f"127.0.0.{2 + index // PER_ADDRESS}", 0))
            await loop.sock_connect(connection, ("127.0.0.1", port))
            key = base64.b64encode(os.urandom(16)).decode()
            head = (
                f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nAuthorization: Bearer sk-bench\r\n\r\n"
            )
            await loop.sock_sendall(connection, head.encode())
            answer = await loop.sock_recv(connection, 4096)
            if not answer.startswith(b"HTTP/1.1 101"):
                raise SystemExit(f"refused: {answer[:300]!r}")
            return connection

    return list(await asyncio.gather(*(one(index) for index in range(number))))


async def idle(connections: int) -> None:
    replica = Replica(connections)
    try:
        for one in await opened(replica.port, 100):  # what is made once is there
            one.close()
        before, began_s, began = replica.rss_kib(), replica.cpu_s(), time.perf_counter()
        sockets = await opened(replica.port, connections)
        took_s, cpu_s, kib = time.perf_counter() - began, replica.cpu_s() - began_s, replica.rss_kib() - before
        print(
            f"{connections} idle connections: {kib / connections:.1f} KiB each, {kib / 1024:.0f} MiB together; "
            f"opened in {took_s:.1f} s, {1000 * cpu_s / connections:.2f} ms of CPU each"
        )
        began_s = replica.cpu_s()
        await asyncio.sleep(10)
        print(f"CPU of the replica while they are idle: {10 * (replica.cpu_s() - began_s):.2f} %")
        for one in sockets:
            one.close()
    finally:
        replica.close()


class OverSse:
    """POST /v1/responses on a connection that stays open, read without a client library."""

    name = "SSE"

    async def open(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=MOST_EVENT_BYTES)

    async def send(self, body: dict[str, Any]) -> int:
        """Bytes that were sent."""
        content = json.dumps(body | {"stream": True}).encode()
        head = (
            "POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer sk-bench\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        await self._writer.drain()
        return len(head) + len(content)

    async def events(self) -> AsyncGenerator[bytes, None]:
        while (line := await self._reader.readline()) != b"0\r\n":  # the end of the last chunk
            if line.startswith(b"data: {"):
                yield line.removeprefix(b"data: ")
            elif not line:
                raise SystemExit("the replica has closed the connection")
        await self._reader.readline()

    def close(self) -> None:
        self._writer.close()


class OverSocket:
    """A WebSocket, read without a client library."""

    name = "WebSocket"

    async def open(self, port: int) -> None:
        (connection,) = await opened(port, 1)
        self._reader, self._writer = await asyncio.open_connection(sock=connection)

    async def send(self, body: dict[str, Any]) -> int:
        """Bytes that were sent."""
        content = json.dumps(body | {"type": "response.create"}).encode()
        frame = struct.pack("!BBQ4x", 0x81, 0x80 | 127, len(content)) + content  # a text, masked with zeros
        self._writer.write(frame)
        await self._writer.drain()
        return len(frame)

    async def events(self) -> AsyncGenerator[bytes, None]:
        while True:
            _, length = await self._reader.readexactly(2)
            if length >= 126:
                length = int.from_bytes(await self._reader.readexactly(2 if length == 126 else 8))
            event = await self._reader.readexactly(length)
            yield event
            if b'"response.completed"' in event[:200]:
                return

    def close(self) -> None:
        self._writer.close()


Transport = OverSse | OverSocket


class Answered(NamedTuple):
    first_s: float
    """Time to the first token."""
    cpu_s: float
    """CPU time of the replica."""
    num_sent: int
    """Bytes."""
    response: dict[str, Any]


async def answered(replica: Replica, transport: Transport, body: dict[str, Any]) -> Answered:
    began_s, began, first, event = replica.cpu_s(), time.perf_counter(), 0.0, b""
    num_sent = await transport.send(body)
    async for event in transport.events():
        if not first and b'"response.output_text.delta"' in event[:200]:
            first = time.perf_counter() - began
    done = json.loads(event)
    if done["type"] != "response.completed":
        raise SystemExit(f"failed: {event[:300]!r}")
    return Answered(first, replica.cpu_s() - began_s, num_sent, done["response"])


async def against_sse() -> None:
    """Single responses, in turns."""
    replica = Replica(100)
    transports: list[Transport] = [OverSse(), OverSocket()]
    measured: dict[str, list[Answered]] = {each.name: [] for each in transports}
    try:
        for transport in transports:
            await transport.open(replica.port)
        for number in range(ROUNDS + 1):
            for transport in transports if number % 2 else reversed(transports):
                one = await answered(replica, transport, BODY)
                if number:  # the first round warms up
                    measured[transport.name].append(one)
        for transport in transports:
            transport.close()
    finally:
        replica.close()
    for name, answers in measured.items():
        cpu_us = [1e6 * one.cpu_s / TOKENS for one in answers]
        print(
            f"{name:>9}: {median(cpu_us):.1f} us of CPU per token ({min(cpu_us):.1f} to {max(cpu_us):.1f}), first "
            f"token after {1000 * median(one.first_s for one in answers):.2f} ms, of {ROUNDS} responses"
        )


async def steps_of_an_agent() -> None:
    """Steps behind a growing input, which SSE sends whole, and WebSockets continue on their connection."""
    replica = Replica(100)
    transports: list[Transport] = [OverSse(), OverSocket()]
    measured: dict[str, list[Answered]] = {each.name: [] for each in transports}
    first = [{"role": "user", "content": "word " * FIRST_WORDS}]
    try:
        for transport in transports:
            await transport.open(replica.port)
        for task in range(TASKS + 1):
            for transport in transports if task % 2 else reversed(transports):
                sent: list[Any] = list(first)
                body: dict[str, Any] = BODY | {"max_output_tokens": STEP_TOKENS, "input": sent}
                for _ in range(STEPS):
                    one = await answered(replica, transport, body)
                    if task:  # the first task warms up
                        measured[transport.name].append(one)
                    new = [{"role": "user", "content": "word " * RESULT_WORDS}]
                    sent += [*one.response["output"], *new]
                    if isinstance(transport, OverSocket):
                        body |= {"previous_response_id": one.response["id"], "input": new}
        for transport in transports:
            transport.close()
    finally:
        replica.close()
    print(f"{STEPS} steps behind {FIRST_WORDS} words, each with {RESULT_WORDS} further ones:")
    for name, answers in measured.items():
        print(
            f"{name:>9}: {1000 * sum(one.cpu_s for one in answers) / len(answers):.1f} ms of CPU and "
            f"{sum(one.num_sent for one in answers) / len(answers) / 1024:.1f} KiB sent per step, first token after "
            f"{1000 * median(one.first_s for one in answers):.2f} ms, of {TASKS} tasks"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.serve is not None:
        asyncio.run(serve(options.serve, options.connections))
        return
    asyncio.run(idle(min(options.connections, hard - OTHER_FILES)))
    asyncio.run(against_sse())
    asyncio.run(steps_of_an_agent())


if __name__ == "__main__":
    main()
