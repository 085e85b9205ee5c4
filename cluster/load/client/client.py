"""Sends requests to an endpoint, over connections that it keeps open, and bounds how long each may take."""

import asyncio
import ssl

from cluster.load.client.connection import CutShort, EndpointConnection, LoadExchange
from cluster.load.client.endpoint import Endpoint

CONNECT_TIMEOUT_S = 10.0
"""Time for one connection, with TLS, in seconds. Longer waits for hosts that are gone; shorter fails where a listener's
queue is full for a moment.
"""


class LoadClient:
    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what an endpoint with HTTPS is checked with; None for the trust of this machine."""
        self._endpoint = endpoint
        self._tls = (tls or ssl.create_default_context()) if endpoint.is_tls else None
        self._idle: list[EndpointConnection] = []

    async def exchange(self, request: bytes, timeout_s: float) -> LoadExchange:
        """Send a request and read its answer to the end, whatever its status.

        Raises:
            TimeoutError: the answer was not whole in time.
            CutShort: the connection ended before the answer.
            ValueError: what came is no answer (BrokenAnswer), or too large (TooLargeAnswer).
            OSError: no connection.
        """
        exchange = LoadExchange(request, asyncio.get_running_loop().create_future())
        await self.run(exchange, timeout_s)
        return exchange

    async def run(self, exchange: LoadExchange, timeout_s: float) -> None:
        """As `exchange`. What came before an error is in the exchange."""
        async with asyncio.timeout(timeout_s):
            while True:
                connection, is_used = await self._connection()
                try:
                    connection.begin(exchange)
                    await exchange.done
                except CutShort:
                    if not is_used or exchange.num_bytes:
                        raise
                    # The endpoint has closed an idle connection just as the request came
                    exchange.done = asyncio.get_running_loop().create_future()
                    continue
                except BaseException:
                    connection.close()
                    raise
                if connection.is_open:
                    self._idle.append(connection)
                return

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connection(self) -> tuple[EndpointConnection, bool]:
        """A connection, and whether it has been used before."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection, True
        loop, endpoint = asyncio.get_running_loop(), self._endpoint
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, made = await loop.create_connection(EndpointConnection, endpoint.host, endpoint.port, ssl=self._tls)
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        return made, False
