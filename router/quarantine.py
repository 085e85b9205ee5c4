"""Requests that engines were lost with, and that are not to run again for a while.

A request is known by its digest, which covers its tenant: nobody can have another tenant's request refused. Who shared
an engine with the reason twice is refused as well. Where many requests were lost with one engine, hardly any of them is
the reason, so that these are refused for a short time only.
"""

from typing import Final, final

from cluster.types import Rejection, WorkerId

MAX_ENGINES_LOST: Final = 2
"""Engines that may be lost with one request. More let one request stop more of the fleet; with one, each request that
shared an engine with the reason fails.
"""
QUARANTINE_S: Final = 600.0
"""How long a request is refused, in seconds. Longer keeps out a request that is harmless by now, shorter lets a client
that sends it again and again stop engines more often.
"""
SHORT_QUARANTINE_S: Final = 60.0
"""The same, where many requests were lost with one engine. It outlasts the retries of the usual clients."""
MANY: Final = 4
"""So many requests, lost for the last time with one engine, are many."""
MAX_KEPT: Final = 1024
"""Requests in quarantine. Beyond it the oldest leave it: more costs memory, fewer let requests out early when whole
fleets are lost.
"""


@final
class Quarantine:
    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}
        self._lost_with: dict[WorkerId, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, digest: bytes, worker: WorkerId, now: float) -> None:
        """`worker`: whose engine was the last one that was lost with the request."""
        self._forget(now)
        others = self._lost_with.setdefault(worker, [])
        if digest not in others:
            others.append(digest)
        seconds = SHORT_QUARANTINE_S if len(others) >= MANY else QUARANTINE_S
        for one in others:
            self._until.pop(one, None)
            self._until[one] = now + seconds
        while len(self._until) > MAX_KEPT:
            del self._until[next(iter(self._until))]

    def holds(self, digest: bytes, now: float) -> bool:
        return now < self._until.get(digest, now)

    def clear(self, digest: bytes) -> None:
        """The request has finished somewhere."""
        self._until.pop(digest, None)

    def _forget(self, now: float) -> None:
        self._until = {digest: until for digest, until in self._until.items() if now < until}
        self._lost_with = {
            worker: kept
            for worker, digests in self._lost_with.items()
            if (kept := [digest for digest in digests if digest in self._until])
        }


def quarantined() -> Rejection:
    """The answer to a request in quarantine."""
    return Rejection(retry_after_s=QUARANTINE_S, why="engines were lost with this request", is_quarantined=True)
