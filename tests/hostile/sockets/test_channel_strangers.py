"""Strangers at a real listener, with an honest peer beside them that must not wait longer than a second."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.messages.ids import Address
from cluster.metrics.page import render, scrape
from cluster.network.handshake import ANSWER_BYTES, GREETING_BYTES, MAGIC, PROOF_BYTES, VERSION, ListenerHandshake
from cluster.network.proving import MAX_UNPROVED, UnprovedConnections
from cluster.network.secret import cluster_secret
from cluster.network.strangers import LOG_INTERVAL_S, STRANGERS, Strangers
from cluster.rpc.connection import Service
from cluster.rpc.frames import Method
from cluster.rpc.listener import connect
from tests.hostile.sockets.strangers import (
    ECHO,
    FUZZ_MINUTES,
    Echo,
    Patience,
    ask_as_a_new_peer,
    flooded,
    framed,
    frames,
    listening,
    nested,
    say,
    sayings,
)

NUM_FLOODING = 2000
NUMBER = Method[int, int]("number", int, int)
_CALL = 1


def counted() -> int:
    return sum(STRANGERS.counts().values())


async def are_dropped_beside_a_peer(conversations: list[list[bytes]]) -> None:
    echo = Echo()
    async with listening(echo) as listener:
        peer = await connect(listener.address, Service())
        before = counted()
        talking = asyncio.gather(*(say(listener, parts) for parts in conversations))
        async with Patience():
            assert await peer.call(ECHO, b"still there?") == b"still there?"
        await ask_as_a_new_peer(listener)
        await talking
        assert echo.num_asked == 2
        assert peer.is_open
        assert counted() == before + len(conversations)
        peer.close()


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # some sayings are large on purpose
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(sayings, min_size=1, max_size=4), min_size=1, max_size=8))
def test_strangers_are_dropped_and_counted_whatever_they_say(conversations: list[list[Any]]) -> None:
    asyncio.run(are_dropped_beside_a_peer(conversations))


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES + 300)
def test_strangers_are_dropped_for_minutes() -> None:
    @settings(max_examples=int(1500 * FUZZ_MINUTES), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(sayings, min_size=1, max_size=8), min_size=1, max_size=16))
    def test(conversations: list[list[bytes]]) -> None:
        asyncio.run(are_dropped_beside_a_peer(conversations))

    test()


async def test_nested_message_of_a_stranger_reaches_no_decoder(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as listener:
        await say(listener, [nested(100_000)])
        await ask_as_a_new_peer(listener)
    assert "RecursionError" not in caplog.text
    assert "Traceback" not in caplog.text


async def spoken_after_proof(parts: list[bytes]) -> None:
    """By a peer whose code is wrong: it knows the secret, and says what no peer says."""
    async with listening() as listener:
        bad, good = [await connect(listener.address, Service()) for _ in range(2)]
        assert bad._transport is not None
        for part in parts:
            bad._transport.write(part)
        async with Patience():
            assert await good.call(ECHO, b"hello") == b"hello"
        bad.close()
        good.close()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(frames, st.binary(max_size=500)), min_size=1, max_size=6))
def test_what_a_proved_peer_says_wrongly_harms_nobody_else(parts: list[bytes]) -> None:
    asyncio.run(spoken_after_proof(parts))


async def test_nested_message_of_a_proved_peer_closes_its_connection_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening() as listener:
        peer = await connect(listener.address, Service())
        assert peer._transport is not None
        peer._transport.write(nested(100_000))
        async with Patience():
            await peer.lost.wait()
        await ask_as_a_new_peer(listener)
    assert "does not speak the protocol" in caplog.text
    assert "Traceback" not in caplog.text


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[tuple[Address, list[bytes]]]:
    """A peer that answers the first call of each connection with these bytes, and what it was sent as proofs."""
    process, proofs, done = "70" * 16, list[bytes](), asyncio.Event()
    tasks = set[asyncio.Task[None] | None]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        handshake = ListenerHandshake(cluster_secret(), process, bytes(32))
        writer.write(handshake.greeting())
        proofs.append(await reader.readexactly(ANSWER_BYTES))
        proof = handshake.take(proofs[-1])
        assert proof is not None
        writer.write(proof)
        await reader.read(1 << 16)
        writer.write(framed(body))
        await done.wait()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield Address(host, port, process), proofs
        done.set()
        await asyncio.gather(*filter(None, tasks))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"\x94\x02\x01\xa0" + b"\xa1x", "cannot be read"),
        (b"\x94\x03\x01\xa0" + b"\xa1x", "cannot be read"),
        (b"\x94\x03\x01\xa0" + msgspec.msgpack.encode(("UnheardOf", [])), "does not know"),
        (b"\x94\x02\x01\xa0" + b"\xc1", "gone"),
        (b"\x94\x02\x01\xa0" + b"\x91" * 50_000 + b"\x00", "gone"),
        (b"\x94\x03\x01\xa0" + b"\x92\xa1\xff\x90", "cannot be read"),
    ],
    ids=["result of another type", "failure of another type", "unknown failure", "no result", "nested", "no text"],
)
async def test_answer_that_nobody_can_read_ends_the_call_of_who_waits_for_it(body: bytes, error: str) -> None:
    """One that is whole ends its call alone, and one that is not ends the connection."""
    async with answering(body) as (address, _):
        connection = await connect(address, Service())
        with pytest.raises(Exception, match=error):
            async with Patience():
                await connection.call(NUMBER, 1)
        assert connection.is_open == (error != "gone")
        connection.close()


async def test_each_connection_is_proved_with_another_nonce() -> None:
    """So that what was recorded of the listener's proof proves nothing to who connects later."""
    async with answering(b"") as (address, proofs):
        for _ in range(5):
            (await connect(address, Service())).close()
    assert len({proof[:-PROOF_BYTES] for proof in proofs}) == 5


async def test_peer_that_announces_a_longer_message_than_there_may_be_is_closed_at_once() -> None:
    """It would be kept until it is whole."""
    for size, is_closed in ((1 << 28, False), ((1 << 28) + 1, True), (2**32 - 1, True)):
        async with listening() as listener:
            peer = await connect(listener.address, Service())
            assert peer._transport is not None
            peer._transport.write(framed(msgspec.msgpack.encode((_CALL, 1, ECHO.name, b"first"))))
            peer._transport.write(struct.pack(">I", size))
            async with Patience():
                if is_closed:
                    await peer.lost.wait()
                else:
                    await ask_as_a_new_peer(listener)
            assert peer.is_open != is_closed
            peer.close()


async def test_silent_connection_is_ended_within_seconds_whatever_it_has_begun_to_say() -> None:
    """Each holds a file descriptor of the process."""
    async with listening() as listener:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        begun = [await asyncio.open_connection(listener.address.host, listener.address.port) for _ in range(3)]
        for (_, writer), said in zip(begun, (b"", MAGIC, MAGIC + bytes([VERSION]) + bytes(60)), strict=True):
            writer.write(said)
        before = STRANGERS.counts().get(("channel", "silent"), 0)
        async with asyncio.timeout(10):
            for reader, writer in begun:
                with suppress(ConnectionError):
                    await reader.read()
                    writer.close()
                    await writer.wait_closed()
        assert loop.time() - began_at > 2.0
        assert STRANGERS.counts()["channel", "silent"] == before + 3


async def test_each_connection_is_greeted_with_another_nonce() -> None:
    """So that what was recorded of one proves nothing on another."""
    async with listening() as listener:
        assert len({await say(listener, []) for _ in range(5)}) == 5


async def test_flood_of_silent_connections_keeps_no_peer_out_and_leaves_nothing_behind() -> None:
    async with listening() as listener:
        assert await flooded(listener, NUM_FLOODING, b"") > 5


class Guest:
    """A connection that has not proved itself, as those that count them see it."""

    def __init__(self, host: str, all_of_them: UnprovedConnections) -> None:
        self.host = host
        self.was_refused = ""
        self._all = all_of_them

    def refuse(self, reason: str) -> None:
        self.was_refused = reason
        own: Any = self  # stands for a connection
        self._all.remove(own)


def test_host_that_floods_pushes_out_its_own_connections_and_not_those_of_others() -> None:
    unproved = UnprovedConnections()
    peer: Any = Guest("10.0.0.1", unproved)
    unproved.add(peer)
    flood: list[Any] = [Guest("10.6.6.6", unproved) for _ in range(3 * MAX_UNPROVED)]
    for guest in flood:
        unproved.add(guest)
    assert not peer.was_refused
    assert len(unproved) == MAX_UNPROVED
    assert [bool(guest.was_refused) for guest in flood] == [True] * (2 * MAX_UNPROVED + 1) + [False] * (
        MAX_UNPROVED - 1
    )


async def test_strangers_are_on_the_metrics_page_by_socket_and_reason() -> None:
    async with listening() as listener:
        assert len(await say(listener, [b"GET / HTTP/1.1\r\n\r\n"])) <= GREETING_BYTES
        await say(listener, [MAGIC + bytes([VERSION + 1]) + bytes(64)])
    page = render([scrape("prefill", "x")]).decode()
    for reason in ("not_the_protocol", "other_version"):
        assert f'baton_strangers_total{{socket="channel",reason="{reason}",deployment="prefill",replica="x"}}' in page


def test_flood_of_strangers_costs_one_line_of_the_log_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    strangers = Strangers(lambda: now)
    for _ in range(1000):
        strangers.count("channel", "silent", ("10.0.0.1", 4))
    now = LOG_INTERVAL_S
    strangers.count("channel", "wrong_proof", ("10.0.0.2", 4))
    assert [record.message.split()[0] for record in caplog.records] == ["1", "1000"]
    assert strangers.counts() == {("channel", "silent"): 1000, ("channel", "wrong_proof"): 1}
