"""Requests that engines were lost with, and that are not to run again for a while.

A request is known by its digest, which covers its tenant: nobody can have another tenant's request refused. Losses
count one after another: each placement carries how many were known when it was made, and a loss is the next number. So
engines that are lost at once with copies of a request count once, and a loss that is told twice, or late, counts once.

Who shared an engine with the reason twice is refused as well. Where many requests were lost with one engine, hardly any
of them is the reason, so that these are refused for a short time only.
"""

from collections import deque
from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.placement import Rejection

MAX_ENGINES_LOST: Final = 2
"""The loss of so many engines ends a request. With more, one request stops more of the fleet; with one, each request
that shared an engine with the reason fails.
"""
QUARANTINE_S: Final = 600.0
"""How long a request is refused, and a loss remembered, in seconds. Longer keeps out a request that is harmless by now,
shorter lets a client that sends it again and again stop engines more often.
"""
SHORT_QUARANTINE_S: Final = 60.0
"""The same, where many requests were lost with one engine. It outlasts the retries of the usual clients."""
MANY: Final = 4
"""So many requests, lost for the last time with one engine, are many."""
MAX_KEPT: Final = 4096
"""Requests of which a loss is remembered. Beyond it the oldest are forgotten: more costs memory, some 200 bytes each,
fewer let requests out early when whole fleets are lost.
"""
MAX_LEFT: Final = 4096
"""Requests that ended early and are remembered in case that their engine had stopped before. More costs memory, fewer
miss the reason where clients leave in great numbers while an engine hangs.
"""
LEFT_MARGIN_S: Final = 1.0
"""How long before an engine's last answer a request may have ended early and still be taken for the reason, in seconds:
the worker learns of answers late. Longer suspects more requests that are harmless, shorter misses the reason.
"""


@final
class _Losses:
    __slots__ = ("num", "until")

    def __init__(self, num: int, until: float) -> None:
        self.num = num
        self.until = until


@final
class Quarantine:
    def __init__(self) -> None:
        self._losses: dict[bytes, _Losses] = {}
        self._lost_with: dict[WorkerId, list[bytes]] = {}
        """By the worker whose engine was the last one: the requests that are refused."""
        self._left: deque[tuple[float, WorkerId, bytes, int]] = deque(maxlen=MAX_LEFT)
        """What ended early: when, where, its digest, and how many engines were lost if that was why."""

    def __len__(self) -> int:
        return len(self._losses)

    def lost(self, digest: bytes, worker: WorkerId, num_engines_lost: int, now: float) -> None:
        """An engine died or hung while it had the request. `num_engines_lost`: with this one."""
        if self.num_lost(digest, now) >= num_engines_lost:
            return
        self._set(digest, num_engines_lost, now + QUARANTINE_S)
        if num_engines_lost >= MAX_ENGINES_LOST:
            others = self._refused_for(worker, now)
            others.append(digest)
            if len(others) >= MANY:
                for one in others:
                    self._set(one, num_engines_lost, now + SHORT_QUARANTINE_S)
        while len(self._losses) > MAX_KEPT:
            del self._losses[next(iter(self._losses))]

    def left(self, digest: bytes, worker: WorkerId, num_engines_lost: int, now: float) -> None:
        """A request has ended early on a worker, say because its client left: nobody would notice that it is what the
        engine has stopped of. `num_engines_lost`: with this one, if it is.
        """
        self._left.append((now, worker, digest, num_engines_lost))

    def engine_lost(self, worker: WorkerId, silent_s: float, now: float) -> None:
        """An engine that last answered `silent_s` ago is dead or hangs. What left it since counts as lost with it."""
        since = now - silent_s - LEFT_MARGIN_S
        for at, where, digest, num_engines_lost in self._left:
            if where == worker and at >= since:
                self.lost(digest, worker, num_engines_lost, now)

    def num_lost(self, digest: bytes, now: float) -> int:
        """Engines that were lost with the request lately, one after another."""
        known = self._losses.get(digest)
        return known.num if known is not None and now < known.until else 0

    def holds(self, digest: bytes, now: float) -> bool:
        return self.num_lost(digest, now) >= MAX_ENGINES_LOST

    def clear(self, digest: bytes) -> None:
        """The request has run to its end without the loss of an engine. To finish after one proves nothing: a request
        may stop each prefill engine that it meets, and finish on a decode engine.
        """
        self._losses.pop(digest, None)

    def _set(self, digest: bytes, num: int, until: float) -> None:
        self._losses.pop(digest, None)
        self._losses[digest] = _Losses(num, until)

    def _refused_for(self, worker: WorkerId, now: float) -> list[bytes]:
        """The list of those that are refused since this worker's engine was lost, to be added to."""
        refused = {
            one: kept for one, all_of in self._lost_with.items() if (kept := [d for d in all_of if self.holds(d, now)])
        }
        self._lost_with = refused
        return refused.setdefault(worker, [])


def quarantined() -> Rejection:
    """The answer to a request in quarantine."""
    return Rejection(retry_after_s=QUARANTINE_S, why="engines were lost with this request", is_quarantined=True)
