"""The start of a connection, until both sides have proved themselves (cluster/network/handshake.py). Then the
connection's own protocol takes over the transport. With certificates, TLS begins before the proof
(cluster/network/tls_transport.py).

Strangers cost little: a connection that has not proved itself takes some hundred bytes for UNPROVED_TIMEOUT_S at most,
and a listener has at most MAX_UNPROVED of them. Connections that end here are counted.
"""

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from cluster.network.certificates import Certificates
from cluster.network.handshake import NONCE_BYTES, ConnectorHandshake, ListenerHandshake, Refused
from cluster.network.strangers import STRANGERS
from cluster.network.tls_transport import TlsTransport

CONNECT_TIMEOUT_S = 3.0
"""Time for the TCP connect to another process, in seconds. Then the connect fails. Longer makes requests wait for a
node that is gone; shorter gives up a node that is slow.
"""
PROOF_TIMEOUT_S = 5.0
"""Time that a connecting process waits for TLS and the listener's proof, in seconds. Then the connection is aborted.
Longer makes requests wait for a process that hangs; shorter gives up a process that stops for a moment.
"""
UNPROVED_TIMEOUT_S = 3.0
"""Time that a listener waits for TLS and the proof of a connecting process, in seconds. Then the connection is aborted
and counted. Longer lets strangers hold connections longer; shorter refuses peers that are slow for a moment.
"""
MAX_UNPROVED = 1024
"""Most connections of one listener that have not proved themselves. More takes more of the file descriptors
(MAX_OPEN_FILES of cluster/rpc/listener.py). Fewer lets a flood of strangers, or a thousand workers that come back to a
restarted Scheduler at once, push out peers before they can answer. It must exceed ACCEPTED_PER_ROUND.
"""
ACCEPTED_PER_ROUND = 100
"""Connections that a listener accepts in one round of the event loop. More delays the other work of the process; fewer
lets a flood fill the kernel's queue (MAX_QUEUED).
"""
MAX_QUEUED = 4096
"""Connections that the kernel keeps until the listener accepts them; the kernel's default limit is the same. If the
queue is full, the connecting side tries again after a second. More makes peers wait behind more strangers; fewer makes
more peers try again.
"""

SOCKET, PEER = "channel", "peer"
"""Names of the two places where strangers are counted: this process's listener, and a listener that this process
connects to.
"""
_NO_STRANGERS = {"other_process", "ended"}
"""Reasons that occur when a process was replaced. They are not counted as strangers."""

P = TypeVar("P", bound=asyncio.Protocol)


class UnprovedConnections:
    """The connections of one listener that have not proved themselves.

    If there are more than MAX_UNPROVED, the oldest connection of the host with the most connections is closed. A peer
    answers the greeting within one round trip, so the oldest connection is hardly a peer. A host that floods the
    listener pushes out its own connections only.
    """

    def __init__(self) -> None:
        self._by_host: dict[str, dict[_Unproved, None]] = {}
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def add(self, connection: "_Unproved") -> None:
        self._by_host.setdefault(connection.host, {})[connection] = None
        self._num += 1
        if self._num > MAX_UNPROVED:
            crowd = max(self._by_host.values(), key=len)
            next(iter(crowd)).refuse("crowded_out")

    def remove(self, connection: "_Unproved") -> None:
        of_host = self._by_host.get(connection.host, {})
        if connection in of_host:
            del of_host[connection]
            self._num -= 1
            if not of_host:
                del self._by_host[connection.host]

    def close(self) -> None:
        for of_host in list(self._by_host.values()):
            for connection in list(of_host):
                connection.abort()


class _Unproved(asyncio.Protocol):
    """The listener's side of a connection that has not proved itself."""

    def __init__(
        self,
        handshake: ListenerHandshake,
        others: UnprovedConnections,
        proved: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._handshake = handshake
        self._others = others
        self._proved = proved
        self._tls = tls
        self._is_over = False
        self.host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        self._name = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        self._timeout = asyncio.get_running_loop().call_later(UNPROVED_TIMEOUT_S, self._give_up)
        self._others.add(self)
        if self._is_over:
            return
        if self._tls is None:
            self._greet()
        else:
            self._transport = TlsTransport(self._transport, self, self._tls, is_listener=True, secured=self._greet)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            proof = self._handshake.take(data)
        except Refused as refused:
            self.refuse(refused.reason, str(refused))
            return
        if proof is not None:
            self._transport.write(proof)
            self._leave()
            _pass_transport(self._transport, self._proved())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_over:
            return
        self._leave()
        if isinstance(exc, Refused):
            STRANGERS.count(SOCKET, exc.reason, f"{self._name}: {exc}")
        else:
            STRANGERS.count(SOCKET, "gave_up", self._name)

    def refuse(self, reason: str, why: str = "") -> None:
        STRANGERS.count(SOCKET, reason, f"{self._name}: {why}" if why else self._name)
        self.abort()

    def abort(self) -> None:
        self._leave()
        self._transport.abort()

    def _greet(self) -> None:
        self._transport.write(self._handshake.greeting())

    def _give_up(self) -> None:
        self.refuse("silent", "" if self._tls is None else "is network.tls set in its process, too?")

    def _leave(self) -> None:
        self._is_over = True
        self._timeout.cancel()
        self._others.remove(self)


class _Proving(asyncio.Protocol, Generic[P]):
    """The connecting side of a connection. `outcome` is set when the listener has proved itself, or has failed to."""

    def __init__(self, handshake: ConnectorHandshake, proved: Callable[[], P], tls: ssl.SSLContext | None) -> None:
        self._handshake = handshake
        self._proved = proved
        self._tls = tls
        self._has_answered = False
        self.outcome: asyncio.Future[P] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._tls is not None:
            self._transport = TlsTransport(self._transport, self, self._tls, is_listener=False, secured=lambda: None)

    def data_received(self, data: bytes) -> None:
        if self.outcome.done():
            return
        try:
            reply = self._handshake.take(data)
        except Refused as refused:
            self.outcome.set_exception(refused)
            return
        if reply:
            self._has_answered = True
            self._transport.write(reply)
        if (rest := self._handshake.rest) is not None:
            protocol = self._proved()
            _pass_transport(self._transport, protocol)
            self.outcome.set_result(protocol)
            if rest:
                protocol.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.outcome.done():
            return
        if isinstance(exc, Refused):
            error = exc
        elif self._has_answered:
            error = Refused(
                "refused",
                "the listener refused this process's proof, or ended: do both processes have the same secret?",
            )
        else:
            error = Refused("ended", "the listener ended, or network.tls is set in its process and not in this one")
        self.outcome.set_exception(error)


async def listen(
    host: str,
    secret: bytes,
    process: str,
    unproved: UnprovedConnections,
    proved: Callable[[], asyncio.Protocol],
    certificates: Certificates | None,
) -> asyncio.Server:
    """Listen on a free port of `host`. `proved` makes the protocol that takes over. None for `certificates` listens in
    clear.
    """

    def accepted() -> _Unproved:
        handshake = ListenerHandshake(secret, process, secrets.token_bytes(NONCE_BYTES))
        tls = None if certificates is None else certificates.contexts().listening
        return _Unproved(handshake, unproved, proved, tls)

    listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    server = await asyncio.get_running_loop().create_server(accepted, sock=listening, backlog=ACCEPTED_PER_ROUND)
    listening.listen(MAX_QUEUED)  # asyncio uses `backlog` for the queue and for the accepts per round
    return server


async def prove(
    host: str, port: int, secret: bytes, process: str, proved: Callable[[], P], certificates: Certificates | None
) -> P:
    """Connect, and return the protocol that has taken over. None for `certificates` connects in clear. Raises OSError,
    TimeoutError, or Refused.
    """
    handshake = ConnectorHandshake(secret, process, secrets.token_bytes(NONCE_BYTES))
    tls = None if certificates is None else certificates.contexts().connecting
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        transport, proving = await asyncio.get_running_loop().create_connection(
            lambda: _Proving(handshake, proved, tls), host, port
        )
    try:
        async with asyncio.timeout(PROOF_TIMEOUT_S):
            return await proving.outcome
    except BaseException as error:
        transport.abort()
        if isinstance(error, Refused) and error.reason not in _NO_STRANGERS:
            STRANGERS.count(PEER, error.reason, f"{host}:{port}: {error}")
        raise


def _pass_transport(transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
