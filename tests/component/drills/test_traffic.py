"""The drills' streams outlive their ingress: they go on while there is none, and find the one that comes next."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.drills.client import CONNECTION_LOST, NOT_REACHED, Client
from tests.drills.traffic import Traffic
from tests.real_cluster.service import wait_for

WITHIN_S = 20.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@contextmanager
def ingress(answer: bytes) -> Iterator[int]:
    """Gives each request this answer, and closes the connection. Yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, answer), daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, answer: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)


def hosts(first: Callable[[], str], then: str, num_first: int) -> Callable[[], str]:
    """A function that asks `first` a few times, and then gives the other host."""
    left = iter(range(num_first))
    return lambda: then if next(left, None) is None else first()


def _no_node() -> str:
    raise httpx.ConnectError("0 nodes of type ingress run")


@pytest.mark.parametrize("away", [_no_node, lambda: "127.0.0.2"], ids=["no address", "nobody listens"])
def test_streams_go_on_until_there_is_an_ingress(away: Callable[[], str]) -> None:
    with ingress(HEAD) as port:
        traffic = Traffic(hosts(away, "127.0.0.1", 2), port, seed=0, num_at_once=1)
        try:
            wait_for(lambda: traffic.outcomes[CONNECTION_LOST] > 0, WITHIN_S, interval_s=0.05)
        finally:
            traffic.stop()
    assert traffic.outcomes[NOT_REACHED] == 2
    assert [answer.outcome for answer in traffic.answers[:3]] == [NOT_REACHED, NOT_REACHED, CONNECTION_LOST]
    assert len(traffic.errors) == 2


def test_system_asks_whether_the_machine_of_a_silent_ingress_is_there() -> None:
    with ingress(HEAD) as port:
        client = Client(port, WITHIN_S)
        with client.socket as connected:
            assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle_s, interval_s, number = (
                connected.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
    assert idle_s + interval_s * number <= WITHIN_S
