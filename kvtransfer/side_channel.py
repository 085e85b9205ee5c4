"""The NIXL side channel: where an engine gives other engines of its cluster what they need to read its KV blocks.

The protocol is vLLM's, one question and one answer, over ZeroMQ connections that prove themselves (CURVE). Both sides
have key pairs that are derived from the application's secret, and libzmq drops a connection without the client's key
before a byte of it is read. A message that is not exactly one of vLLM's questions is dropped and counted.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import zmq
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import GET_META_MSG
from vllm.utils.network_utils import is_valid_ipv6_address, make_zmq_path
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from cluster.network.secret import cluster_secret
from cluster.network.strangers import STRANGERS
from cluster.unreadable import UNREADABLE

SOCKET = "nixl_side_channel"

MAX_QUESTION_BYTES = 1024
"""Bytes of a message to the listener. vLLM's question has about twenty, and the proof of a connection some hundred.
libzmq closes a connection that announces more. A larger limit lets strangers take more memory; a smaller one drops
peers.
"""
HANDSHAKE_TIMEOUT_MS = 3_000
"""Milliseconds that a connection may take to prove itself. Longer lets strangers hold file descriptors of the engine
for longer; shorter refuses peers that are slow for a moment.
"""
BACKLOG = 512
"""Connections that the system keeps for the listener. Fewer lets a burst of strangers keep peers out; more costs
nothing until they come.
"""
MAX_OPEN_FILES = 65_535
"""Files that the engine's process may have open, if the system allows it. Each stranger holds one until it is dropped,
and only this limit bounds their number. With fewer, fewer strangers can keep the engine from opening files and links;
more costs nothing until strangers come.
"""
STOP_INTERVAL_MS = 1_000
"""Milliseconds between two looks whether the listener must stop. Longer delays the end of the engine; shorter costs
CPU.
"""

_ZAP = "inproc://zeromq.zap.01"
"""Where libzmq asks which client keys are let in (RFC 27)."""
_FAILED = {
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "no_handshake",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "not_the_protocol",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "wrong_proof",
}

_decode_question = msgspec.msgpack.Decoder(tuple[bytes, int, int]).decode


class KeyPair(NamedTuple):
    """A CURVE key pair in Z85, as libzmq takes it."""

    public: bytes
    secret: bytes


def key_pair(role: str) -> KeyPair:
    """The key pair of all listeners, or of all connectors, of the application. Raises what `cluster_secret` raises."""
    derive = HKDF(SHA256(), length=32, salt=None, info=b"baton nixl side channel " + role.encode())
    secret = z85.encode(derive.derive(cluster_secret()))
    return KeyPair(zmq.curve_public(secret), secret)


def listen(
    answers: Mapping[tuple[int, int], bytes],
    ready: threading.Event,
    stop: threading.Event,
    host: str,
    port: int,
) -> None:
    """Answer until `stop` is set. `answers`: by pipeline and tensor parallel rank. `ready` is set when peers can
    connect.

    Raises zmq.ZMQError if the port is taken.
    """
    with zmq.Context() as context, context.socket(zmq.REP) as zap, context.socket(zmq.ROUTER) as router:
        zap.bind(_ZAP)
        _set_keys(router, "listener")
        router.curve_server = True
        router.handshake_ivl = HANDSHAKE_TIMEOUT_MS
        router.maxmsgsize = MAX_QUESTION_BYTES
        router.backlog = BACKLOG
        router.linger = 0
        client_key = z85.decode(key_pair("connector").public)
        with router.get_monitor_socket(sum(_FAILED)) as failures:
            poller = zmq.Poller()
            for one in (zap, router, failures):
                poller.register(one, zmq.POLLIN)
            router.bind(_path(router, host, port))
            ready.set()
            while not stop.is_set():
                for readable, _ in poller.poll(STOP_INTERVAL_MS):
                    if readable is zap:
                        _let_in(zap, client_key)
                    elif readable is failures:
                        STRANGERS.count(SOCKET, _FAILED[recv_monitor_message(failures)["event"]])
                    else:
                        _answer(router, answers)


@contextmanager
def connected(socket_type: int, path: str) -> Iterator[zmq.Socket[bytes]]:
    """Replaces vLLM's `zmq_ctx`, with which its connector asks."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(socket_type)
        _set_keys(socket, "connector")
        socket.curve_serverkey = key_pair("listener").public
        if path.startswith("tcp://["):
            socket.ipv6 = True
        socket.connect(path)
        yield socket
    finally:
        context.destroy(linger=0)


def _set_keys(socket: Any, role: str) -> None:
    socket.curve_publickey, socket.curve_secretkey = key_pair(role)


def _path(router: Any, host: str, port: int) -> str:
    if is_valid_ipv6_address(host):
        router.ipv6 = True
    return str(make_zmq_path("tcp", host, port))


def _let_in(zap: "zmq.Socket[bytes]", client_key: bytes) -> None:
    """Answer a question of libzmq: version, id, domain, address, identity, mechanism, and the client's key."""
    asked = zap.recv_multipart()
    mechanism, key = asked[5:6], asked[6:7]
    status = (b"200", b"OK") if (mechanism, key) == ([b"CURVE"], [client_key]) else (b"400", b"no")
    zap.send_multipart([*asked[:2], *status, b"", b""])


def _answer(router: "zmq.Socket[bytes]", answers: Mapping[tuple[int, int], bytes]) -> None:
    """Answer a question, or drop it. The listener goes on in any case. The answer contains the clock of this process,
    because vLLM's workers estimate the offset of theirs.
    """
    identity, *question = router.recv_multipart()
    answer = _answer_to(question, answers)
    if answer is None:
        STRANGERS.count(SOCKET, "bad_question")
    else:
        router.send_multipart((identity, b"", answer, msgspec.msgpack.encode(time.perf_counter())))


def _answer_to(question: list[bytes], answers: Mapping[tuple[int, int], bytes]) -> bytes | None:
    if len(question) != 2 or question[0]:
        return None
    try:
        kind, *ranks = _decode_question(question[1])
    except UNREADABLE:
        return None
    return answers.get((ranks[0], ranks[1])) if kind == GET_META_MSG else None
