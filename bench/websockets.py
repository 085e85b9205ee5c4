"""What WebSockets of /v1/responses cost an ingress replica: memory of idle ones, and CPU and first token against SSE.

    make bench-websockets [ARGS="--connections 10000"]

The replica is a process of its own, with a model that gives tokens without an engine. Its memory is read before and
after the connections are opened. Responses over both transports take turns, on one open connection each.
"""

import argparse
import asyncio
import base64
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from statistics import median
from typing import Any

from bench.fronts.free_ports import free_port

PER_ADDRESS = 2000
"""Connections from one source address: the ingress limits them."""
TOKENS = 2000
ROUNDS = 12
OPENING = 200
"""Connections that are being opened at the same time."""
OTHER_FILES = 200
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


async def against_sse() -> None:
    import httpx
    from websockets.asyncio.client import connect

    replica = Replica(100)
    first_s: dict[str, list[float]] = {"SSE": [], "WebSocket": []}
    cpu_us: dict[str, list[float]] = {"SSE": [], "WebSocket": []}

    async def over_sse(client: httpx.AsyncClient) -> float:
        began, first = time.perf_counter(), 0.0
        async with client.stream("POST", "/v1/responses", json=BODY | {"stream": True}) as answer:
            async for line in answer.aiter_lines():
                if not first and line.startswith("event: response.output_text.delta"):
                    first = time.perf_counter() - began
        return first

    async def over_socket(connection: Any) -> float:
        began, first = time.perf_counter(), 0.0
        await connection.send(json.dumps(BODY | {"type": "response.create"}))
        async for event in connection:
            if not first and '"response.output_text.delta"' in event[:200]:
                first = time.perf_counter() - began
            if '"response.completed"' in event[:200]:
                break
        return first

    try:
        url = f"127.0.0.1:{replica.port}"
        async with (
            httpx.AsyncClient(base_url=f"http://{url}", timeout=60) as client,
            connect(f"ws://{url}/v1/responses", proxy=None, compression=None) as connection,
        ):
            for number in range(ROUNDS + 1):
                ways = {"SSE": lambda: over_sse(client), "WebSocket": lambda: over_socket(connection)}
                for name in list(ways) if number % 2 else reversed(list(ways)):
                    began_s = replica.cpu_s()
                    first = await ways[name]()
                    if number:  # the first round warms up
                        first_s[name].append(first)
                        cpu_us[name].append(1e6 * (replica.cpu_s() - began_s) / TOKENS)
    finally:
        replica.close()
    for name in first_s:
        print(
            f"{name:>9}: {median(cpu_us[name]):.1f} us of CPU per token ({min(cpu_us[name]):.1f} to "
            f"{max(cpu_us[name]):.1f}), first token after {1000 * median(first_s[name]):.2f} ms"
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


if __name__ == "__main__":
    main()
