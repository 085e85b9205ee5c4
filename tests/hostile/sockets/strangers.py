"""What strangers say at the channel's listener, and an honest peer beside them."""

import asyncio
import gc
import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import psutil
from hypothesis import strategies as st

from cluster.network.handshake import GREETING_BYTES, MAGIC, NONCE_BYTES, PROOF_BYTES, VERSION
from cluster.network.proving import MAX_UNPROVED
from cluster.rpc.connection import Service
from cluster.rpc.frames import Method
from cluster.rpc.listener import Listener, connect

ECHO = Method[bytes, bytes]("echo", bytes, bytes)
HEAD = MAGIC + bytes([VERSION])
CLOSED_WITHIN_S = 30.0
PATIENCE_S = 1.0
TICK_S = 0.02
HANGS_AFTER_S = 30.0
FUZZ_MINUTES = float(os.environ.get("BATON_FUZZ_MINUTES", "2"))
"""How long each test of `make fuzz` goes on, about."""


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def nested(depth: int) -> bytes:
    """A call of the method without a name, whose argument is lists in lists."""
    return framed(b"\x94\x01\x00\xa0" + b"\x91" * depth + b"\x00")


frames = st.one_of(
    st.integers(1, 50_000).map(nested),
    st.tuples(
        st.integers(0, 9),
        st.integers(0, 3),
        st.just(ECHO.name) | st.text(max_size=9),
        st.binary(max_size=99) | st.binary(max_size=99).map(msgspec.msgpack.encode),
    ).map(lambda fields: framed(msgspec.msgpack.encode(fields))),
    st.integers(0, 2**32 - 1).map(lambda size: struct.pack(">I", size)),
)
sayings = st.one_of(
    st.binary(max_size=2000),
    frames,
    st.binary(max_size=NONCE_BYTES + PROOF_BYTES + 40).map(HEAD.__add__),
    st.binary(min_size=NONCE_BYTES + PROOF_BYTES, max_size=NONCE_BYTES + PROOF_BYTES).map(HEAD.__add__),
    st.just(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    st.integers(1, 1 << 20).map(lambda size: b"\0" * size),
)


class Echo(Service):
    """Keeps what reaches a handler."""

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0
        self.on_call(ECHO, self._echo)

    async def _echo(self, said: bytes) -> bytes:
        self.num_asked += 1
        return said


@asynccontextmanager
async def listening(service: Service | None = None) -> AsyncIterator[Listener]:
    listener = await Listener.start("127.0.0.1", service or Echo())
    try:
        yield listener
    finally:
        await listener.close()


async def say(listener: Listener, parts: list[bytes]) -> bytes:
    """Send as a stranger until the listener closes the connection. Returns what the listener sent."""
    reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port)
    heard = bytearray()
    try:
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
            writer.write_eof()
            async with asyncio.timeout(CLOSED_WITHIN_S):
                while data := await reader.read(1 << 16):
                    heard += data
    finally:
        writer.transport.abort()
    assert len(heard) in (0, GREETING_BYTES)
    return bytes(heard)


class Patience:
    """What is inside must not take longer than a second, for which other programs did not have the processor.

    A wait is counted in ticks of the event loop, and work in the time of this process: strangers, listener and peer all
    run in it. Garbage is not collected meanwhile: after thousands of tests that is a second's work of its own.
    """

    async def __aenter__(self) -> None:
        gc.disable()
        self._num_ticks = 0
        self._began_at = time.process_time()
        self._ticking = asyncio.create_task(self._tick())
        self._hang = asyncio.timeout(HANGS_AFTER_S)
        await self._hang.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        gc.enable()
        self._ticking.cancel()
        await self._hang.__aexit__(*raised)
        assert self._num_ticks * TICK_S < PATIENCE_S
        assert time.process_time() - self._began_at < PATIENCE_S

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._num_ticks += 1


async def ask_as_a_new_peer(listener: Listener) -> None:
    """Connect, ask, leave, all of it soon."""
    async with Patience():
        connection = await connect(listener.address, Service())
        assert await connection.call(ECHO, b"hello") == b"hello"
        connection.close()


async def flooded(listener: Listener, number: int, says: bytes) -> int:
    """A flood of connections that say this much and no more, beside a peer whose calls are answered. It leaves nothing
    behind. Returns how often the peer was answered meanwhile.
    """
    process = psutil.Process()
    peer = await connect(listener.address, Service())
    num_open_files = process.num_fds()
    strangers: list[socket.socket] = []

    async def flood() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(number):
            strangers.append(socket.socket())
            strangers[-1].setblocking(False)
            await loop.sock_connect(strangers[-1], (listener.address.host, listener.address.port))
            with suppress(ConnectionError):
                await loop.sock_sendall(strangers[-1], says)
            if len(strangers) > MAX_UNPROVED:
                strangers.pop(0).close()

    flooding = asyncio.create_task(flood())
    num_asked = 0
    while not flooding.done():
        async with Patience():
            await peer.call(ECHO, b"hello")
        await ask_as_a_new_peer(listener)
        num_asked += 1
    await flooding
    assert len(listener._unproved) <= MAX_UNPROVED
    for one in strangers:
        one.close()
    async with asyncio.timeout(CLOSED_WITHIN_S):
        while len(listener._unproved):  # noqa: ASYNC110  # the ends of strangers set no event
            await asyncio.sleep(0.01)
    assert process.num_fds() <= num_open_files + 2
    peer.close()
    return num_asked
