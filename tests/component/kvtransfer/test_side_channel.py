"""The port at which engines ask each other for their NIXL metadata."""

import os
import socket
import threading

import pytest
import zmq

from cluster.engine.environment import reserve_port
from kvtransfer.connector import HandoffScheduler


def test_reserved_port_is_nobodys_but_the_engines() -> None:
    with reserve_port("127.0.0.1") as reserved, zmq.Context() as context, context.socket(zmq.ROUTER) as engine:
        host, port = reserved.getsockname()
        assert port < 32_768, "the system gives it to connections"
        with socket.socket() as somebody, pytest.raises(OSError, match="in use"):
            somebody.bind((host, port))
        engine.bind(f"tcp://{host}:{port}")
        with socket.create_connection((host, port)):
            pass


def test_engine_that_cannot_listen_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with socket.create_server(("127.0.0.1", 0)) as other:
        HandoffScheduler._nixl_handshake_listener({}, threading.Event(), threading.Event(), *other.getsockname())
    assert ended == [1]
