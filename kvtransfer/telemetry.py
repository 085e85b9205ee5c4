"""The decode engine's telemetry of transfers: statistics of its NIXL connector, one dictionary per step. Pure.

vLLM's own statistics do not contain the request or the peer of a transfer, and leave out the time around it. Baton's
(kvtransfer/connector.py) contain how long each request waited for its blocks.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

_MAX_KEPT = 1024
"""Transfers that are kept. A measurement looks at the last few. Fewer may lose one of them; more takes memory."""


class Transfer(msgspec.Struct, frozen=True):
    """One finished read of one engine process."""

    num_bytes: int
    duration_s: float


class TransferLog:
    """The engine's last transfers."""

    def __init__(self) -> None:
        self._kept: deque[Transfer] = deque(maxlen=_MAX_KEPT)
        self._num_recorded = 0

    @property
    def num_recorded(self) -> int:
        return self._num_recorded

    def record(self, stats: Mapping[str, Any]) -> int:
        """`stats`: statistics of the NIXL connector, of one step. Returns the bytes of its transfers."""
        sizes, durations = stats.get("bytes_transferred", ()), stats.get("transfer_duration", ())
        self._kept.extend(
            Transfer(num_bytes, duration_s) for num_bytes, duration_s in zip(sizes, durations, strict=True)
        )
        self._num_recorded += len(durations)
        return sum(sizes)

    def since(self, num_recorded: int) -> list[Transfer]:
        """The transfers after the first `num_recorded`, as far as they are kept."""
        num_new = min(self._num_recorded - num_recorded, len(self._kept))
        return list(islice(self._kept, len(self._kept) - num_new, None))


PULLS_KEY = "pulls"
"""Key of the pulls that have ended well, in the statistics of an engine's connector: pairs of a request and the fields
of `Pull`.
"""


class Pull(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One pull that has ended well, by one engine process. Times are seconds of this machine's `time.monotonic`."""

    seconds: float
    """From the start of the read until the engine noticed its end, which it does between two steps."""
    ended_at: float = 0.0
    """When the engine noticed the end."""
    connect_s: float = 0.0
    """From the order to pull to the start of the read: a handshake, if the engines did not know each other."""
    post_s: float = 0.0
    """Time to post the reads, and before it, to list the blocks."""
    transfer_s: float = 0.0
    """Time from the post of the longest read to its end, by NIXL. 0 if NIXL does not say."""
    num_bytes: int = 0


class PullLog:
    """The engine's last pulls, by the engine's own ids of the requests."""

    def __init__(self) -> None:
        self._pulls: OrderedDict[str, Pull] = OrderedDict()

    def record(self, stats: Mapping[str, Any]) -> None:
        """`stats`: statistics of the NIXL connector, of one step, which have gone through a serializer."""
        for request_id, values in stats.get(PULLS_KEY, ()):
            self._pulls[request_id] = Pull(*values)
        while len(self._pulls) > _MAX_KEPT:
            self._pulls.popitem(last=False)

    def pop(self, engine_request_id: str) -> Pull | None:
        return self._pulls.pop(engine_request_id, None)
