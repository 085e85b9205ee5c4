"""KeptReceipts: the latest route receipts of one ingress replica, bounded in number, in bytes and in time.

A receipt is kept encoded: so its size is known, and the garbage collector has nothing to walk.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from router.session.receipt import RouteReceipt

MOST_BYTES = 32 << 20
"""Bytes of all kept receipts of a replica. A receipt of one attempt has 1 to 3 kB. More takes memory; fewer forgets
sooner than `ingress.keep_receipts` says.
"""
KEPT_S = 3600.0
"""Time for which a receipt is kept, in seconds. Longer keeps receipts of a quiet service that nobody looks for; shorter
forgets a request before an operator hears of it.
"""
MOST_FOUND = 20
"""Receipts of one name that are shown. A request with many prompts has many sessions. More makes answers
longer; fewer hides attempts of a client.
"""


class KeptReceipt(msgspec.Struct, frozen=True, array_like=True):
    """A receipt as it is kept, and as another replica gets it."""

    closed_at: float
    """When the request ended, in seconds since 1970."""
    request_id: str
    http_request: str
    encoded: bytes

    def receipt(self) -> RouteReceipt:
        return _decode(self.encoded)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RouteReceipt).decode


class KeptReceipts:
    def __init__(self, most: int, clock: Callable[[], float] = time.time) -> None:
        """`most`: receipts. `clock`: seconds since 1970."""
        self.most = most
        self._clock = clock
        self._kept: deque[KeptReceipt] = deque()
        self._num_bytes = 0

    def add(self, receipt: RouteReceipt) -> None:
        if not self.most:
            return
        kept = KeptReceipt(self._clock(), receipt.request_id, receipt.http_request, _encode(receipt))
        self._kept.append(kept)
        self._num_bytes += len(kept.encoded)
        while len(self._kept) > self.most or self._num_bytes > MOST_BYTES:
            self._drop()
        self._forget_old()

    def newest(self, number: int) -> list[KeptReceipt]:
        """At most `number` receipts as they are kept, the newest first."""
        self._forget_old()
        return list(islice(reversed(self._kept), number))

    def last(self, number: int, http_request: str | None = None) -> list[RouteReceipt]:
        """At most `number` receipts, the newest first: of all requests, or of one HTTP request."""
        self._forget_old()
        found = (kept for kept in reversed(self._kept) if http_request in (None, kept.http_request))
        return [kept.receipt() for kept in islice(found, number)]

    def named(self, name: str) -> list[KeptReceipt]:
        """The receipts of the session, or of the HTTP request, of this name, as `shown_of` shows them."""
        self._forget_old()
        found = [kept for kept in reversed(self._kept) if name in (kept.request_id, kept.http_request)]
        return shown_of(found, name)

    def _forget_old(self) -> None:
        oldest = self._clock() - KEPT_S
        while self._kept and self._kept[0].closed_at < oldest:
            self._drop()

    def _drop(self) -> None:
        self._num_bytes -= len(self._kept.popleft().encoded)


def shown_of(found: Sequence[KeptReceipt], name: str) -> list[KeptReceipt]:
    """At most MOST_FOUND receipts of this name, the newest first, from all of them in that order.

    Those of the session of this name come first: no client chooses its id. A client may choose an `x-request-id` that
    another one has used. So the oldest receipts are among those that are shown, and no later request pushes them out.
    """
    own = [kept for kept in found if kept.request_id == name][:MOST_FOUND]
    others = [kept for kept in found if kept.request_id != name]
    room = MOST_FOUND - len(own)
    if len(others) > room:
        num_oldest = room // 2
        others = [*others[: room - num_oldest], *others[len(others) - num_oldest :]]
    return [*own, *others]
