"""A port of a service on one machine: its ingress replicas share it, and nobody else does.

Linux gives a port to several sockets that all ask for it (SO_REUSEPORT), and spreads the connections over them. So the
successor of a replica listens before the replica ends. Two services that share a port by mistake would each get a part
of the other's requests, so a replica asks whoever listens there already which service it is of.
"""

import asyncio
import socket
from contextlib import closing

from api.wire.response_headers import SERVICE
from cluster.config.ingress import IngressConfig
from cluster.config.network import ALL_INTERFACES, LOOPBACK

BIND_TIMEOUT_S = 20.0
"""Longest wait for the port, in seconds. A replica of this service that listens there may be too busy to say so. With a
lower value, a replacement fails beside a busy predecessor; with a higher value, a wrong port is reported later.
"""
BIND_RETRY_S = 0.2
"""Pause between two tries to bind the port, in seconds. A lower value costs CPU; a higher value delays the start."""
ASK_TIMEOUT_S = 2.0
"""Longest wait for the answer of who listens on the port, in seconds. With a lower value, a busy replica is asked again
and again; with a higher value, a program that never answers is reported later.
"""
BACKLOG = 2048
"""Connections that the kernel completes before the process accepts them, in number. With a lower value, a burst of new
connections is dropped; with a higher value, more connections wait in a process that is too busy.
"""
SEND_BUFFER_BYTES = 128 << 10
"""Size of a connection's send buffer in the kernel, in bytes. The kernel's own choice grows to megabytes. With a higher
value, a client that reads nothing is noticed later; with a lower value, a fast client waits for the event loop.
"""


async def listening_socket(config: IngressConfig, service: str, setting: str) -> socket.socket:
    """A socket that listens on the address of `config`, beside those of other replicas of the service. `setting`: the
    key of the Serve config with the port. Raises OSError if the address cannot be bound.
    """
    deadline = asyncio.get_running_loop().time() + BIND_TIMEOUT_S
    while True:
        try:
            if await _service_on(config) != service:
                _bound(config, is_shared=False).close()  # raises OSError if anybody listens there
            listening = _bound(config, is_shared=True)
            listening.listen(BACKLOG)
            listening.setblocking(False)
            return listening
        except OSError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise OSError(
                    f"cannot listen on {config.host}:{config.port} ({error.strerror}): choose another {setting}; "
                    "if Serve's own proxy listens there, set proxy_location: Disabled"
                ) from error
        await asyncio.sleep(BIND_RETRY_S)


async def _service_on(config: IngressConfig) -> str | None:
    """The service of the replica that listens on the address. None if nobody listens there who says so in time. A
    refusal says so, too: the admin port refuses this question for its lack of a key.
    """
    host = LOOPBACK if config.host == ALL_INTERFACES else config.host
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, config.port)
            with closing(writer):
                writer.write(f"HEAD /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = await reader.readuntil(b"\r\n\r\n")
    except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
        return None
    headers = (line.partition(b": ") for line in answer.split(b"\r\n"))
    return next((value.decode() for name, _, value in headers if name == SERVICE.encode()), None)


def _bound(config: IngressConfig, *, is_shared: bool) -> socket.socket:
    """A socket on the address. If `is_shared`, others that are shared can have it too. Raises OSError."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit the option
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        bound.bind((config.host, config.port))
    except OSError:
        bound.close()
        raise
    return bound
