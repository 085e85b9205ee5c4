"""Strangers at the port where engines ask each other for their NIXL metadata."""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import psutil
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import GET_META_MSG

from cluster.config.environment import SECRET_VARIABLE
from cluster.engine.environment import reserve_port
from cluster.network.strangers import STRANGERS
from kvtransfer import connector, side_channel

METADATA = b"what reads and writes this engine's memory"
ANSWERS = {(0, 0): METADATA, (0, 1): b"of the second rank"}
HONEST_S = 1.0
"""What an honest peer may wait, in seconds."""


SECRET = "s" * 40


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """Where a listener answers, as in an engine."""
    with reserve_port("127.0.0.1") as reserved, pytest.MonkeyPatch.context() as patch:
        patch.setenv(SECRET_VARIABLE, SECRET)
        host, port = reserved.getsockname()
        ready, stop = threading.Event(), threading.Event()
        listening = threading.Thread(
            target=connector.HandoffScheduler._nixl_handshake_listener, args=(ANSWERS, ready, stop, host, port)
        )
        listening.start()
        assert ready.wait(10.0)
        yield host, port
        stop.set()
        listening.join(10.0)
        assert not listening.is_alive()


def ask(address: tuple[str, int], rank: int = 0) -> bytes:
    """As vLLM's connector asks: its question, through the name that it uses."""
    host, port = address
    with base_worker.zmq_ctx(zmq.REQ, f"tcp://{host}:{port}") as asking:
        asking.setsockopt(zmq.RCVTIMEO, 5000)
        asking.send(msgspec.msgpack.encode((GET_META_MSG, 0, rank)))
        answer, clock = asking.recv_multipart()
    assert abs(msgspec.msgpack.decode(clock) - time.perf_counter()) < 5.0
    return bytes(answer)


def check_honest_peer(address: tuple[str, int]) -> None:
    began_at = time.monotonic()
    assert ask(address) == METADATA
    assert time.monotonic() - began_at < HONEST_S


@contextmanager
def counted(*reasons: str) -> Iterator[None]:
    """So many seconds later at most, strangers have been counted for one of these reasons."""
    before = num_counted(reasons)
    yield
    deadline = time.monotonic() + 10.0
    while num_counted(reasons) == before:
        assert time.monotonic() < deadline, f"nobody was counted: {STRANGERS.counts()}"
        threading.Event().wait(0.02)


def num_counted(reasons: tuple[str, ...]) -> int:
    return sum(STRANGERS.counts().get((side_channel.SOCKET, reason), 0) for reason in reasons)


def test_engines_of_the_application_get_the_metadata_of_the_rank_that_they_ask_for(address: tuple[str, int]) -> None:
    assert ask(address, 0) == METADATA
    assert ask(address, 1) == b"of the second rank"


def test_peer_that_speaks_vllm_s_protocol_without_a_proof_learns_nothing(address: tuple[str, int]) -> None:
    with counted("not_the_protocol", "no_handshake"), zmq.Context() as context, context.socket(zmq.REQ) as stranger:
        stranger.linger = 0
        stranger.rcvtimeo = 500
        stranger.connect("tcp://{}:{}".format(*address))
        stranger.send(msgspec.msgpack.encode((GET_META_MSG, 0, 0)))
        with pytest.raises(zmq.Again):
            stranger.recv_multipart()
    check_honest_peer(address)


def test_peer_that_knows_the_listener_s_key_and_has_another_one_learns_nothing(address: tuple[str, int]) -> None:
    with counted("wrong_proof"), zmq.Context() as context, context.socket(zmq.REQ) as stranger:
        stranger.linger = 0
        stranger.rcvtimeo = 500
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
        stranger.curve_serverkey = side_channel.key_pair("listener").public
        stranger.connect("tcp://{}:{}".format(*address))
        stranger.send(msgspec.msgpack.encode((GET_META_MSG, 0, 0)))
        with pytest.raises(zmq.Again):
            stranger.recv_multipart()
    check_honest_peer(address)


def test_engine_of_another_application_learns_nothing(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(SECRET_VARIABLE, "o" * 40)
        with base_worker.zmq_ctx(zmq.REQ, "tcp://{}:{}".format(*address)) as stranger:
            stranger.setsockopt(zmq.RCVTIMEO, 500)
            stranger.send(msgspec.msgpack.encode((GET_META_MSG, 0, 0)))
            with pytest.raises(zmq.Again):
                stranger.recv_multipart()
    check_honest_peer(address)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"", b""],
        [b"", b"\xc1"],
        [b"", b"\x91" * 500],
        [b"", b"\x93\xa2\xff\xfe\x00\x00"],
        [b"", msgspec.msgpack.encode(("get_meta_msg", 0, 0))],
        [b"", msgspec.msgpack.encode((b"other", 0, 0))],
        [b"", msgspec.msgpack.encode((GET_META_MSG, 7, 7))],
        [b"", msgspec.msgpack.encode((GET_META_MSG, [0], {}))],
        [b"", msgspec.msgpack.encode((GET_META_MSG, 0, 0)), b"more"],
        [b"no empty frame", msgspec.msgpack.encode((GET_META_MSG, 0, 0))],
    ],
    ids=lambda frames: f"{len(frames)} frames, {len(frames[-1])} bytes",
)
def test_wrong_question_of_a_peer_is_dropped_and_counted(address: tuple[str, int], frames: list[bytes]) -> None:
    with base_worker.zmq_ctx(zmq.DEALER, "tcp://{}:{}".format(*address)) as peer, counted("bad_question"):
        peer.send_multipart(frames)
        peer.setsockopt(zmq.RCVTIMEO, 100)
        with pytest.raises(zmq.Again):
            peer.recv_multipart()
    check_honest_peer(address)


@pytest.mark.parametrize("num_bytes", [1100, 100_000])
def test_connection_with_a_longer_message_than_any_question_is_closed_and_nothing_of_it_is_read(
    address: tuple[str, int], num_bytes: int
) -> None:
    """A peer that says long things is held to a kilobyte: it is not counted as one with a wrong question."""
    before = num_counted(("bad_question",))
    with (
        base_worker.zmq_ctx(zmq.DEALER, "tcp://{}:{}".format(*address)) as peer,
        peer.get_monitor_socket(zmq.EVENT_DISCONNECTED) as ends,
    ):
        peer.send_multipart([b"", os.urandom(num_bytes)])
        assert ends.poll(10_000), "the connection is open"
        peer.disable_monitor()
    check_honest_peer(address)
    assert num_counted(("bad_question",)) == before


ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01"
BYTES = st.one_of(
    st.binary(max_size=2000),
    st.binary(max_size=200).map(lambda rest: ZMTP_GREETING + rest),
    st.binary(max_size=200).map(lambda rest: ZMTP_GREETING + b"CURVE" + bytes(15) + bytes(32) + rest),
    st.sampled_from([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" * 50, bytes(100_000)]),
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(BYTES, max_size=4))
def test_bytes_of_strangers_change_nothing(address: tuple[str, int], sent: list[bytes]) -> None:
    with socket.create_connection(address, timeout=5.0) as stranger:
        try:
            for some in sent:
                stranger.sendall(some)
        except OSError:
            pass
        check_honest_peer(address)
    check_honest_peer(address)


def test_many_silent_connections_keep_no_peer_out_and_are_dropped(address: tuple[str, int]) -> None:
    with ExitStack() as stack, counted("no_handshake"):
        strangers = [stack.enter_context(socket.create_connection(address, timeout=5.0)) for _ in range(400)]
        check_honest_peer(address)
        deadline = time.monotonic() + 12.0
        for stranger in strangers:
            assert is_dropped(stranger, deadline)
    check_honest_peer(address)


def test_system_keeps_a_burst_of_connections_for_the_listener_while_it_does_something_else(
    address: tuple[str, int],
) -> None:
    """Of those that it has not accepted yet, as the kernel tells."""
    listening = [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    (fd,) = [connection.fd for connection in listening if connection.laddr[:2] == address]
    with socket.socket(fileno=os.dup(fd)) as port:
        (backlog,) = struct.unpack_from("I", port.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 28)
    assert backlog >= 500


def is_dropped(stranger: socket.socket, deadline: float) -> bool:
    stranger.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        while stranger.recv(4096):  # the greeting
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_listener_holds_no_more_file_descriptors_after_strangers_than_before(address: tuple[str, int]) -> None:
    check_honest_peer(address)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with socket.create_connection(address, timeout=5.0) as stranger:
            stranger.sendall(ZMTP_GREETING[:5])
    deadline = time.monotonic() + 10.0
    while len(os.listdir("/proc/self/fd")) > before + 2:
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
