"""Requests that engines were lost with. Such requests are refused for a while.

1. A request is known by its digest. The digest covers the tenant, so that no tenant can have another tenant's request
   refused.
2. Losses are numbered. Each placement carries the number of losses that were known when it was made, and a loss with
   the request is the next number. So engines that are lost at once with copies of a request count once, and so does a
   loss that is reported twice or late.
3. A request that shared an engine with the reason twice is refused as well. Where many requests were lost with one
   engine, hardly any of them is the reason, so these requests are refused for a short time only.
"""

from collections import deque
from math import inf
from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.placement import Rejection

MAX_ENGINES_LOST: Final = 2
"""Engines that may be lost with a request before it is refused. After each loss before that, a request that is
resumable or has no token yet runs on another engine. Higher lets one request stop more engines; lower (1) refuses every
request that shared an engine with the reason.
"""
QUARANTINE_S: Final = 600.0
"""How long a request is refused, and a loss remembered, in seconds. Higher refuses requests that are harmless by then;
lower lets a client that repeats a request stop engines more often.
"""
SHORT_QUARANTINE_S: Final = 60.0
"""QUARANTINE_S where many requests were lost with one engine. Higher refuses harmless requests for
longer; lower is over while usual clients still retry.
"""
MANY: Final = 4
"""Number of requests, lost with one engine at their last loss, that counts as many. Higher refuses harmless requests
for longer; lower lets the reason run again sooner.
"""
MAX_KEPT: Final = 4096
"""Requests of which a loss is remembered. Beyond it the oldest are forgotten. Higher costs memory, some 200 bytes for
each; lower admits requests early when many workers are lost at once.
"""
MAX_LEFT: Final = 4096
"""Requests that ended early and are remembered, since their engine may have stopped before. Higher costs memory; lower
misses the reason where many clients leave while an engine hangs.
"""
LEFT_MARGIN_S: Final = 1.0
"""How long before an engine's last answer a request may have ended early and still be suspected, in seconds: the worker
learns of answers late. Higher suspects more harmless requests; lower misses the reason.
"""


@final
class _Neighbours:
    """The requests that are refused and whose last loss was that of one engine."""

    __slots__ = ("digests", "until", "worker")

    def __init__(self, worker: WorkerId) -> None:
        self.worker = worker
        self.digests: dict[bytes, None] = {}
        self.until = inf
        """Until when they are refused at most: SHORT_QUARANTINE_S after the last of them was lost, where they are MANY.
        """


@final
class _Losses:
    __slots__ = ("_until", "neighbours", "num")

    def __init__(self, num: int, until: float, neighbours: _Neighbours | None) -> None:
        self.num = num
        self._until = until
        self.neighbours = neighbours
        """None for a request that is not refused."""

    @property
    def until(self) -> float:
        return self._until if self.neighbours is None else min(self._until, self.neighbours.until)


@final
class Quarantine:
    def __init__(self) -> None:
        self._losses: dict[bytes, _Losses] = {}
        self._lost_with: dict[WorkerId, _Neighbours] = {}
        """By the worker of the engine. None of them is empty."""
        self._left: deque[tuple[float, WorkerId, bytes, int]] = deque(maxlen=MAX_LEFT)
        """Requests that ended early: the time, the worker, the digest, and the number of the loss if there was one."""

    def __len__(self) -> int:
        return len(self._losses)

    def lost(self, digest: bytes, worker: WorkerId, num_engines_lost: int, now: float) -> None:
        """An engine died or hung while it had the request. `num_engines_lost`: the number of this loss."""
        if self.num_lost(digest, now) >= num_engines_lost:
            return
        self._forget(digest)
        neighbours = None
        if num_engines_lost >= MAX_ENGINES_LOST:
            neighbours = self._neighbours_on(worker, now)
            neighbours.digests[digest] = None
            if len(neighbours.digests) >= MANY:
                neighbours.until = now + SHORT_QUARANTINE_S
        self._losses[digest] = _Losses(num_engines_lost, now + QUARANTINE_S, neighbours)
        while len(self._losses) > MAX_KEPT:
            self._forget(next(iter(self._losses)))

    def left(self, digest: bytes, worker: WorkerId, num_engines_lost: int, now: float) -> None:
        """A request has ended early on a worker, for example because its client left. The request may have stopped the
        engine, which is noticed only later. `num_engines_lost`: the number of that loss.
        """
        self._left.append((now, worker, digest, num_engines_lost))

    def engine_lost(self, worker: WorkerId, silent_s: float, now: float) -> None:
        """An engine that last answered `silent_s` ago is dead or hangs. Requests that ended early on it since then
        count as lost with it.
        """
        since = now - silent_s - LEFT_MARGIN_S
        for at, where, digest, num_engines_lost in self._left:
            if where == worker and at >= since:
                self.lost(digest, worker, num_engines_lost, now)

    def num_lost(self, digest: bytes, now: float) -> int:
        """Engines that were lost lately with the request, one after another."""
        known = self._losses.get(digest)
        return known.num if known is not None and now < known.until else 0

    def holds(self, digest: bytes, now: float) -> bool:
        return self.num_lost(digest, now) >= MAX_ENGINES_LOST

    def clear(self, digest: bytes) -> None:
        """The request has run to its end without the loss of an engine. An end after a loss proves nothing: a request
        may stop every prefill engine and finish on a decode engine.
        """
        self._forget(digest)

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        assert len(self._losses) <= MAX_KEPT
        for worker, neighbours in self._lost_with.items():
            assert neighbours.worker == worker
            assert neighbours.digests
            assert all(self._losses[digest].neighbours is neighbours for digest in neighbours.digests)
        for digest, losses in self._losses.items():
            assert (losses.neighbours is None) == (losses.num < MAX_ENGINES_LOST)
            if losses.neighbours is not None:
                assert digest in self._lost_with[losses.neighbours.worker].digests

    def _forget(self, digest: bytes) -> None:
        losses = self._losses.pop(digest, None)
        if losses is not None and (neighbours := losses.neighbours) is not None:
            del neighbours.digests[digest]
            if not neighbours.digests:
                del self._lost_with[neighbours.worker]

    def _neighbours_on(self, worker: WorkerId, now: float) -> _Neighbours:
        """The requests whose last loss was that of the worker's engine, without those that are refused no more."""
        known = self._lost_with.get(worker)
        if known is not None:
            are_over = now >= known.until
            if are_over or len(known.digests) < MANY:
                for digest in list(known.digests):
                    if are_over or now >= self._losses[digest].until:
                        self._forget(digest)
        return self._lost_with.setdefault(worker, _Neighbours(worker))


def quarantined() -> Rejection:
    """The answer to a request in quarantine."""
    return Rejection(retry_after_s=QUARANTINE_S, why="engines were lost with this request", is_quarantined=True)
