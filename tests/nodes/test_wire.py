"""The wire is as bad as it is asked to be, between the nodes that it is asked for."""

import sys
import time
from collections.abc import Iterator

import pytest

from tests.nodes.namespaces import Network, Node
from tests.nodes.wire import CUT, Quality, wire

PORT = 5000
ANSWERS = f"""
import socket
listening = socket.create_server(("0.0.0.0", {PORT}))
while True:
    connection, _ = listening.accept()
    while data := connection.recv(1 << 20):
        if data.endswith(b"."):
            connection.sendall(b".")
"""
ASKS = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as connection:
    for _ in range(int(sys.argv[4])):
        connection.sendall(b"x" * int(sys.argv[3]) + b".")
        assert connection.recv(1) == b"."
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    network = Network()
    both = Node(2), Node(3)
    try:
        with open("/dev/null", "wb") as nowhere:
            both[1].start([sys.executable, "-c", ANSWERS], {}, nowhere)
        deadline = time.monotonic() + 10
        while _asked_s(both, 0, 1) is None:
            assert time.monotonic() < deadline
        yield both
    finally:
        for node in both:
            node.kill()
        network.close()


def _asked_s(nodes: tuple[Node, Node], num_bytes: int, times: int) -> float | None:
    """Seconds that messages take there and an answer to each takes back. None without an answer."""
    asking, answering = nodes
    began = time.monotonic()
    command = [sys.executable, "-c", ASKS, answering.address, str(PORT), str(num_bytes), str(times)]
    with open("/dev/null", "wb") as nowhere:
        status = asking.start(command, {}, nowhere).wait()
    return None if status else time.monotonic() - began


def test_far_away(nodes: tuple[Node, Node]) -> None:
    with wire(nodes[0], [nodes[1].address], Quality(delay_s=0.05)):
        took_s = _asked_s(nodes, 0, 10)
    assert took_s is not None and took_s > 10 * 0.1


def test_slow(nodes: tuple[Node, Node]) -> None:
    with wire(nodes[0], [nodes[1].address], Quality(bytes_per_s=1e6)):
        took_s = _asked_s(nodes, 1_000_000, 1)
    assert took_s is not None and took_s > 1.0


def test_cut(nodes: tuple[Node, Node]) -> None:
    with wire(nodes[0], [nodes[1].address], CUT):
        assert _asked_s(nodes, 0, 1) is None
    assert _asked_s(nodes, 0, 1) is not None


def test_others_are_not_concerned(nodes: tuple[Node, Node]) -> None:
    with pytest.raises(AssertionError, match="carried nothing"), wire(nodes[0], ["10.0.0.1"], CUT):
        assert _asked_s(nodes, 0, 1) is not None
