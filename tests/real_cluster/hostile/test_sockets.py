"""Every TCP socket of a running service: where it listens, and what strangers do at it while a client streams."""

import os
import random
import socket
import time
from contextlib import suppress
from ipaddress import ip_address
from typing import NamedTuple

import psutil
import pytest

from cluster.network.handshake import MAGIC, VERSION
from tests.drills.client import ANSWERED, Client
from tests.drills.word_lists import word_list
from tests.hostile.sockets.strangers import FUZZ_MINUTES, nested
from tests.real_cluster.service import Service

SERVE_REPLICA = "ray::ServeReplica:"
"""Of these processes Ray Serve makes each listen on all addresses, with one socket (docs/network.md)."""
NUM_TOKENS = 1500
ANSWERED_WITHIN_S = 60.0
ATTACKED_FOR_S = 5.0
SILENCE_S = 1.0
"""Between two tokens of a stream, and for an answer on another connection."""
HELD_PER_SOCKET = 5
"""Connections of strangers at once."""

SAYINGS = [
    b"",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
    b"\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL" + b"\0" * 48,
    MAGIC + bytes([VERSION]) + b"\0" * 200,
    b"\0" * 4096,
    b"\xff" * 65536,
    nested(50_000),
]


class Listening(NamedTuple):
    host: str
    port: int
    process: psutil.Process

    def __str__(self) -> str:
        return f"{self.host}:{self.port} of {self.process.name()} {' '.join(self.process.cmdline())[:60]}"


def test_service_listens_on_loopback_only(service: Service) -> None:
    found = _listening(service)
    assert {listening.port for listening in found} >= {service.port}
    reachable = [one for one in found if not _is_loopback(one.host)]
    assert [str(one) for one in reachable if not _is_serves_own(one)] == []
    assert len(reachable) == len({one.process for one in reachable})


def test_garbage_at_every_socket_stops_no_stream_and_no_process(service: Service, model: str) -> None:
    _attack_while_a_client_streams(service, model, random.Random(0))


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES + 300)
def test_garbage_at_every_socket_for_minutes(service: Service, model: str) -> None:
    ends_at = time.monotonic() + 60 * FUZZ_MINUTES
    while time.monotonic() < ends_at:
        seed = time.monotonic_ns()
        print("seed", seed)  # noqa: T201  # pytest shows it where the test fails
        _attack_while_a_client_streams(service, model, random.Random(seed))


def _attack_while_a_client_streams(service: Service, model: str, rng: random.Random) -> None:
    sockets = _listening(service)
    processes = {listening.process for listening in sockets}
    stream = Client(service.port, timeout_s=ANSWERED_WITHIN_S)
    stream.ask(model, word_list(41, 150), NUM_TOKENS)
    stream.wait_for_frames(5, ANSWERED_WITHIN_S)
    began_at = time.monotonic()
    longest_s = _attack(sockets, service, rng)
    silence_s = stream.seen.longest_silence_s(began_at)
    assert stream.wait_for_end(ANSWERED_WITHIN_S)
    assert stream.outcome == ANSWERED
    assert [str(process) for process in processes if not process.is_running()] == []
    assert (longest_s < SILENCE_S, silence_s < SILENCE_S) == (True, True), (longest_s, silence_s)


def _attack(sockets: list[Listening], service: Service, rng: random.Random) -> float:
    """Returns how long the slowest honest request took meanwhile, in seconds."""
    held: list[socket.socket] = []
    longest_s = 0.0
    ends_at = time.monotonic() + ATTACKED_FOR_S
    while time.monotonic() < ends_at:
        rng.shuffle(sockets)
        for begin in range(0, len(sockets), 10):
            for listening in sockets[begin : begin + 10]:
                held.append(_stranger(listening, rng))
            asked_at = time.monotonic()
            assert service.of_operators("/baton/links").is_success
            longest_s = max(longest_s, time.monotonic() - asked_at)
        while len(held) > HELD_PER_SOCKET * len(sockets):
            held.pop(0).close()
    for stranger in held:
        stranger.close()
    return longest_s


def _stranger(listening: Listening, rng: random.Random) -> socket.socket:
    stranger = socket.socket(socket.AF_INET6 if ":" in listening.host else socket.AF_INET)
    stranger.settimeout(SILENCE_S)
    with suppress(OSError):
        stranger.connect((listening.host, listening.port))
        stranger.setblocking(False)
        stranger.send(rng.choice([*SAYINGS, rng.randbytes(rng.randrange(300))]))
    return stranger


def _listening(service: Service) -> list[Listening]:
    """Of all processes of the service, servers of its own that are nobody's children included."""
    found = []
    for process in service.all_processes():
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.append(Listening(connection.laddr.ip, connection.laddr.port, process))
    assert os.geteuid() == 0, "only root sees the sockets of other users' processes"
    return found


def _is_serves_own(listening: Listening) -> bool:
    return listening.host == "::" and listening.process.cmdline()[0].startswith(SERVE_REPLICA)


def _is_loopback(host: str) -> bool:
    address = ip_address(host)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
