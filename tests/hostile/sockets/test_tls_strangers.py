"""Strangers at a listener with `network.tls`: those without TLS, without a certificate, and without the secret."""

import asyncio
import gc
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.config.environment import SECRET_VARIABLE
from cluster.config.network import TlsConfig
from cluster.network.certificates import use_certificates
from cluster.network.handshake import MAGIC
from cluster.network.strangers import STRANGERS
from cluster.network.tls_transport import TlsTransport
from cluster.rpc.connection import ConnectionLost, NobodyThere, Service
from cluster.rpc.listener import Listener, connect
from tests.certificates import DAY, Authority
from tests.hostile.sockets.strangers import (
    CLOSED_WITHIN_S,
    ECHO,
    Echo,
    Patience,
    ask_as_a_new_peer,
    flooded,
    listening,
    sayings,
)

AUTHORITY = Authority()
NUM_FLOODING = 1500


@pytest.fixture(autouse=True, scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsConfig]:
    files = AUTHORITY.issued(tmp_path_factory.mktemp("node"))
    use_certificates(files)
    yield files
    use_certificates(None)


def counted(reason: str, at: str = "channel") -> int:
    return STRANGERS.counts().get((at, reason), 0)


@asynccontextmanager
async def counting(reason: str, at: str = "channel") -> AsyncIterator[None]:
    """One connection is counted inside."""
    before = counted(reason, at)
    yield
    async with asyncio.timeout(5):
        while counted(reason, at) == before:  # noqa: ASYNC110  # a count sets no event
            await asyncio.sleep(0.01)
    assert counted(reason, at) == before + 1


async def heard(listener: Listener, parts: list[bytes]) -> bytes:
    """What the listener sends to a stranger until it closes the connection."""
    reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port)
    received = bytearray()
    with suppress(ConnectionError):
        for part in parts:
            writer.write(part)
        writer.write_eof()
        async with asyncio.timeout(CLOSED_WITHIN_S):
            while data := await reader.read(1 << 16):
                received += data
    writer.transport.abort()
    return bytes(received)


def hello() -> bytes:
    """What a client of TLS sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


HELLO = hello()


async def are_dropped_beside_a_peer(conversations: list[list[bytes]]) -> None:
    echo = Echo()
    async with listening(echo) as listener:
        peer = await connect(listener.address, Service())
        before = sum(STRANGERS.counts().values())
        talking = asyncio.gather(*(heard(listener, parts) for parts in conversations))
        async with Patience():
            assert await peer.call(ECHO, b"still there?") == b"still there?"
        await ask_as_a_new_peer(listener)
        assert not any(MAGIC in answer for answer in await talking)
        assert echo.num_asked == 2
        assert sum(STRANGERS.counts().values()) == before + len(conversations)
        peer.close()


@pytest.mark.parametrize("begins_with", [b"\x16\x03\x00\x01\x04\x01\x02\x01\x3c", HELLO], ids=["no hello", "hello"])
async def test_stranger_that_has_left_takes_no_memory_where_cycles_are_not_looked_for(begins_with: bytes) -> None:
    """As in the Scheduler (router/garbage.py)."""
    gc.collect()
    gc.disable()
    try:
        async with listening(Echo()) as listener:
            for _ in range(20):
                await heard(listener, [begins_with])
        assert [one for one in gc.get_objects() if type(one) is TlsTransport] == []
    finally:
        gc.enable()


async def test_stranger_cannot_make_openssl_take_memory_for_a_hello_that_never_comes() -> None:
    async with listening(Echo()) as listener, counting("bad_tls"):
        assert await heard(listener, [b"\x16\x03\x00\x01\x04", b"\x01\x02\x01\x3c"]) == b""


async def test_stranger_cannot_send_certificates_without_end() -> None:
    async with listening(Echo()) as listener, counting("bad_tls"):
        await heard(listener, [HELLO, *[b"\x16\x03\x03\x40\x00" + bytes(1 << 14)] * 2])


async def test_stranger_cannot_choose_a_costly_key_exchange() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ecdh_curve("secp521r1")
    async with listening(Echo()) as listener, counting("bad_tls"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(listener.address.host, listener.address.port, ssl=context)


records = st.one_of(
    st.binary(max_size=2000).map(b"\x16\x03\x01".__add__),
    st.integers(0, len(HELLO)).map(lambda end: HELLO[:end]),
    st.tuples(st.integers(0, len(HELLO) - 1), st.integers(0, 255)).map(
        lambda change: HELLO[: change[0]] + bytes([change[1]]) + HELLO[change[0] + 1 :]
    ),
    st.binary(max_size=200).map(HELLO.__add__),
    st.integers(1, 60).map(lambda number: HELLO + b"\x14\x03\x03\x00\x01\x01" * number),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(sayings | records, min_size=1, max_size=4), min_size=1, max_size=8))
def test_strangers_hear_nothing_of_the_protocol_whatever_they_say(conversations: list[list[Any]]) -> None:
    asyncio.run(are_dropped_beside_a_peer(conversations))


async def shaken(listener: Listener, context: ssl.SSLContext) -> bytes:
    """What a client of TLS hears behind the handshake."""
    try:
        reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port, ssl=context)
    except (ssl.SSLError, ConnectionError):
        return b""
    received = b""
    with suppress(ssl.SSLError, ConnectionError):
        async with asyncio.timeout(CLOSED_WITHIN_S):
            received = await reader.read()
    writer.transport.abort()
    return received


def a_client(certificate: TlsConfig | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate.certificate, certificate.key)
    return context


async def test_client_without_a_certificate_hears_nothing_of_the_protocol() -> None:
    async with listening() as listener:
        async with counting("no_certificate"):
            assert await shaken(listener, a_client()) == b""
        await ask_as_a_new_peer(listener)


async def test_client_with_a_wrong_certificate_hears_nothing_of_the_protocol(tmp_path: Path) -> None:
    async with listening() as listener:
        for number, wrong in enumerate(
            (Authority().issued(tmp_path / "x"), AUTHORITY.issued(tmp_path / "y", age=3 * DAY))
        ):
            async with counting("wrong_certificate"):
                assert await shaken(listener, a_client(wrong)) == b"", number
        await ask_as_a_new_peer(listener)


async def test_client_with_an_older_tls_is_refused(files: TlsConfig) -> None:
    context = a_client(files)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening() as listener, counting("bad_tls"):
        assert await shaken(listener, context) == b""


async def test_member_by_certificate_still_has_to_know_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as listener:
        monkeypatch.setenv(SECRET_VARIABLE, "p" * 40)
        async with counting("wrong_proof"), counting("refused", "peer"):
            with pytest.raises(NobodyThere, match="same secret"):
                await connect(listener.address, Service())


async def test_listener_with_a_wrong_certificate_is_not_taken_for_a_dead_one(tmp_path: Path, files: TlsConfig) -> None:
    use_certificates(Authority().issued(tmp_path / "other"))
    try:
        async with listening() as listener:
            use_certificates(files)
            async with counting("certificate_refused"), counting("wrong_certificate", "peer"):
                with pytest.raises(ConnectionLost, match="not accepted") as lost:
                    await connect(listener.address, Service())
            assert not isinstance(lost.value, NobodyThere)
    finally:
        use_certificates(files)


async def test_process_whose_certificate_is_refused_knows_why(tmp_path: Path, files: TlsConfig) -> None:
    """Its own authority accepts the listener, and the listener does not accept its certificate."""
    own = Authority("another").issued(tmp_path / "own")
    both = tmp_path / "own" / "authority.crt"
    both.write_bytes(both.read_bytes() + AUTHORITY.pem)
    try:
        async with listening() as listener:
            use_certificates(own)
            async with counting("wrong_certificate"), counting("certificate_refused", "peer"):
                with pytest.raises(ConnectionLost, match="does not accept this process's certificate"):
                    await connect(listener.address, Service())
    finally:
        use_certificates(files)


async def test_process_with_tls_and_one_without_close_their_connection_and_say_why(
    files: TlsConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cluster.network.strangers.LOG_INTERVAL_S", 0.0)
    monkeypatch.setattr("cluster.network.proving.UNPROVED_TIMEOUT_S", 0.1)
    async with listening() as with_tls:
        use_certificates(None)
        try:
            with pytest.raises(ConnectionLost, match=r"network\.tls is set in its process and not in this one"):
                await connect(with_tls.address, Service())
            async with listening() as without:
                use_certificates(files)
                with pytest.raises(ConnectionLost, match=r"does not speak TLS: is network\.tls set in both"):
                    await connect(without.address, Service())
                assert await heard(with_tls, [b"GET / HTTP/1.1\r\n\r\n"]) == b""
        finally:
            use_certificates(files)
    assert "channel: silent" in caplog.text
    assert "is network.tls set in its process, too?" in caplog.text
    assert "channel: speaks_tls" in caplog.text
    assert "channel: no_tls" in caplog.text


async def test_half_a_handshake_is_ended_within_seconds_however_it_drips() -> None:
    async with listening() as listener, counting("silent"):
        reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port)
        for byte in HELLO[:-1]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert len(listener._unproved) == 1
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.transport.abort()
        assert len(listener._unproved) == 0


async def test_flood_of_handshakes_keeps_no_peer_out_and_leaves_nothing_behind() -> None:
    async with listening() as listener:
        assert await flooded(listener, NUM_FLOODING, HELLO) > 5


async def test_packet_that_somebody_changed_ends_the_connection_before_a_handler_sees_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    echo = Echo()
    async with listening(echo) as listener:
        peer = await connect(listener.address, Service())
        assert await peer.call(ECHO, b"hello") == b"hello"
        transport: Any = peer._transport
        transport._below.write(b"\x17\x03\x03\x00\x40" + os.urandom(64))
        with pytest.raises(ConnectionLost):
            async with asyncio.timeout(5):
                await peer.call(ECHO, b"never")
        assert echo.num_asked == 1
        await ask_as_a_new_peer(listener)
    assert "was broken off: TLS failed" in caplog.text
