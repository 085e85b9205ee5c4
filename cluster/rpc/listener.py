"""Both ends of a new connection: the process that listens, and the process that connects."""

import asyncio
import secrets
from contextlib import suppress

from cluster.messages.ids import Address
from cluster.network.certificates import own_certificates
from cluster.network.handshake import PROCESS_BYTES, Refused
from cluster.network.open_files import allow_open_files
from cluster.network.proving import UnprovedConnections, listen, prove
from cluster.network.secret import cluster_secret
from cluster.network.tls_transport import TLS_REASONS
from cluster.rpc.connection import Connection, ConnectionLost, NobodyThere, Service

MAX_OPEN_FILES = 65_536
"""Files that a process with a listener may have open, as far as its hard limit permits. Each peer takes one, and soft
limits are often 1,024: fewer than the workers of a large cluster. More has no use; fewer refuses peers.
"""
CLOSE_TIMEOUT_S = 3.0
"""Time that a closing listener gives its connections to send what is buffered, in seconds. Then the listener is closed
anyway. Longer delays the end of a worker whose peers do not read; shorter cuts off the last tokens for slow peers.
"""


class Listener:
    """Accepts the connections of other processes."""

    def __init__(
        self,
        server: asyncio.Server,
        address: Address,
        unproved: UnprovedConnections,
        connections: set[Connection],
    ) -> None:
        self._server = server
        self._unproved = unproved
        self._connections = connections
        self.address = address

    @classmethod
    async def start(cls, host: str, service: Service) -> "Listener":
        """Listen on a free port of `host`, an address of this machine that the other nodes reach."""
        allow_open_files(MAX_OPEN_FILES)
        process = secrets.token_hex(PROCESS_BYTES)
        unproved = UnprovedConnections()
        connections: set[Connection] = set()
        server = await listen(
            host, cluster_secret(), process, unproved, lambda: Connection(service, connections), own_certificates()
        )
        port = server.sockets[0].getsockname()[1]
        return cls(server, Address(host, port, process), unproved, connections)

    async def close(self) -> None:
        """Close all connections. What is buffered is still sent to peers that read it."""
        self._server.close()
        self._unproved.close()
        for connection in list(self._connections):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for connection in list(self._connections):
                    await connection.lost.wait()


async def connect(address: Address, service: Service) -> Connection:
    """Connect to a process. Raises ConnectionLost, or NobodyThere if the process of the address has certainly ended."""
    try:
        return await prove(
            address.host,
            address.port,
            cluster_secret(),
            address.process,
            lambda: Connection(service),
            own_certificates(),
        )
    except TimeoutError as error:
        raise ConnectionLost(f"{address.host}:{address.port} does not answer") from error
    except (OSError, Refused) as error:
        is_alive = isinstance(error, Refused) and error.reason in TLS_REASONS  # its certificate is wrong, or ours
        lost = ConnectionLost if is_alive else NobodyThere
        raise lost(f"cannot connect to {address.host}:{address.port}: {error!r}") from error
