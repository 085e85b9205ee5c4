"""The port at which engines ask each other for their NIXL metadata."""

import os
import socket
import threading

import msgspec
import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import GET_META_MSG

from cluster.engine.environment import reserve_port
from kvtransfer import side_channel
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


ANSWER = b"what reads and writes this engine's memory"
QUESTION = (GET_META_MSG, 0, 0)


@given(
    st.binary(max_size=40)
    | st.tuples(st.sampled_from([GET_META_MSG, "get_meta_msg", b""]), st.integers(-1, 2), st.integers(-1, 2)).map(
        msgspec.msgpack.encode
    )
    | st.lists(st.integers(-(2**63), 2**64 - 1) | st.binary() | st.text()).map(msgspec.msgpack.encode)
)
@example(b"\x91" * side_channel.MAX_QUESTION_BYTES)
@example(b"\x93\xa2\xff\xfe\x00\x00")
def test_nothing_but_the_question_gets_the_answer(sent: bytes) -> None:
    answer = side_channel._answer_to([b"", sent], {(0, 0): ANSWER})
    is_question = sent == msgspec.msgpack.encode(QUESTION)
    assert answer == (ANSWER if is_question else None)
