"""A peer that answers slowly, byte by byte, is given up in time."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from cluster.http_answer import answer_of

OK, ERROR = (b"HTTP/1.1 %s\r\nContent-Length: 100\r\n\r\n" % status for status in (b"200 OK", b"503 Away"))
WHOLE = b"HTTP/1.1 409 Conflict\r\nContent-Length: 3\r\n\r\nwhy"


@contextmanager
def peer(said: bytes, dripped: bytes) -> Iterator[str]:
    """A peer that says something at once, and something else again and again."""
    is_over = threading.Event()

    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(said)
                while dripped and not is_over.wait(0.02):
                    connection.sendall(dripped)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    ("scheme", "said", "dripped"),
    [
        ("http", OK, b"x"),
        ("http", ERROR, b"x"),
        ("http", b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        ("http", b"", b"H"),
        ("http", b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        ("https", b"\x16\x03\x03\x40\x00", b"x"),
    ],
)
def test_peer_that_drips_is_given_up(scheme: str, said: bytes, dripped: bytes) -> None:
    with peer(said, dripped) as where:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
            answer_of(Request(f"{scheme}://{where}/"), 0.2, 1 << 20)
        assert time.monotonic() - began < 2.0


def test_answer_that_is_too_long_is_cut() -> None:
    with peer(OK + b"y" * 100, b"") as where:
        assert answer_of(Request(f"http://{where}/"), 5.0, 10) == b"y" * 10


def test_error_has_its_body() -> None:
    with peer(WHOLE, b"") as where, pytest.raises(HTTPError) as refused:
        answer_of(Request(f"http://{where}/"), 5.0, 10)
    assert (refused.value.code, refused.value.reason, refused.value.read()) == (409, "Conflict", b"why")


def test_what_cannot_be_connected_to_is_no_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        answer_of(Request(f"http://127.0.0.1:{port}/"), 5.0, 10)
