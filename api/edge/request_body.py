"""Request bodies in bytes, which are received before the ingress does any other work for a request.

A client may send a long prompt slowly, but not below a minimum rate. Bytes are counted against the memory for bodies as
they arrive. A request counts as open (api/edge/edge.py) only when its body is complete, so that slow senders do not use
up the open requests of a replica.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive

from api.edge.byte_budget import BYTES_PER_VALUE, ByteBudget, Share
from api.edge.head import Head
from api.edge.inflating import encoding_in, inflated
from cluster.config.ingress import IngressConfig
from cluster.errors import RequestTimedOut, RequestTooLarge

BODY = "baton.body"
"""Key in the ASGI scope of a request. The value is the `Body` of the request."""


class ClientLeft(Exception):
    """The client has left before its request was complete."""


class Body:
    """The body of one request, as routes read it (api/server/json_body.py)."""

    def __init__(self, share: Share) -> None:
        """`share`: the memory that the body is counted in. Other bodies may be counted there, too."""
        self._share = share
        self._num_held = 0
        self._bytes = b""

    def put(self, read: bytes) -> None:
        self._bytes = read

    def take(self) -> bytes:
        taken, self._bytes = self._bytes, b""
        return taken

    def add(self, number: int) -> None:
        """Counts more bytes of the body as held in memory. Raises Overloaded if no memory for bodies is left."""
        self._share.add(number)
        self._num_held += number

    def add_values(self, number: int) -> None:
        """Counts the memory of JSON values that the body is decoded to. Raises Overloaded."""
        self.add(number * BYTES_PER_VALUE)

    def release(self) -> None:
        """Gives all bytes back. A second call has no effect."""
        self._share.give_back(self._num_held)
        self._num_held = 0


class Bodies:
    """The request bodies that one ingress replica reads."""

    def __init__(self, config: IngressConfig, budget: ByteBudget | None = None) -> None:
        """`budget`: one that others take from, too. None for one of its own."""
        self.budget = budget or ByteBudget(config.max_bodies_bytes)
        self._max_bytes = config.max_body_bytes
        self._bytes_per_s = config.min_body_bytes_per_s
        self._grace_s = config.body_grace_s

    def new(self) -> Body:
        return Body(self.share())

    def share(self) -> Share:
        """A share for bodies that are counted together."""
        return Share(self.budget)

    async def read_into(self, body: Body, head: Head, receive: Receive, most: int | None = None) -> None:
        """Reads the body of a request, and decompresses it. `most`: bytes that this body may have. None for those that
        each body may have. Raises InvalidRequest, RequestTooLarge, RequestTimedOut, Overloaded, ClientLeft.
        """
        most = self._max_bytes if most is None else min(most, self._max_bytes)
        _check_size(head.body_bytes, most)
        encoding = encoding_in(head.content_encoding)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            async with asyncio.timeout(self._grace_s) as deadline:
                message = await _part(receive)
                read: bytes | bytearray = message.get("body", b"")
                _count(body, len(read), len(read), most)
                if message.get("more_body"):
                    read = bytearray(read)
                while message.get("more_body"):
                    deadline.reschedule(began_at + self._grace_s + len(read) / self._bytes_per_s)
                    message = await _part(receive)
                    read += message.get("body", b"")
                    _count(body, len(message.get("body", b"")), len(read), most)
        except TimeoutError as error:
            pace = f"{self._bytes_per_s} bytes/s on average, after {self._grace_s:g} s of grace"
            raise RequestTimedOut(f"the request body arrived at less than {pace}", None, "body_timeout") from error
        body.put(bytes(read) if encoding is None else await _inflated(body, bytes(read), encoding, most))


async def _inflated(body: Body, compressed: bytes, encoding: str, most: int) -> bytes:
    whole = bytearray()
    for part in inflated(compressed, encoding):
        whole += part
        _count(body, len(part), len(whole), most)
        await asyncio.sleep(0)  # other requests have a turn between two steps
    return bytes(whole)


def _count(body: Body, number: int, total: int, most: int) -> None:
    _check_size(total, most)
    body.add(number)


def _check_size(number: int, most: int) -> None:
    if number > most:
        raise RequestTooLarge(f"the request body has more than {most} bytes", None, "request_too_large")


async def _part(receive: Callable[[], Awaitable[Message]]) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message
