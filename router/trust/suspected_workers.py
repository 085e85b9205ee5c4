"""Workers that an ingress could not reach. A bad connection of one ingress is no fault of the worker: others use it.

The ingress gets no placement on the worker for a while, and for twice as long if it could not reach the worker again
soon after. If several ingresses could not reach the worker within a short time, the worker itself is taken to be gone,
until its next report.
"""

from typing import Final, final

from cluster.messages.ids import IngressId, WorkerId

LEAST_HOLD_S, MOST_HOLD_S = 1.0, 60.0
"""How long an ingress gets no placement on a worker that it could not reach, in seconds: the first time, and at most.
Higher leaves a worker unused by an ingress that could reach it again; lower has more of its requests fail and be placed
anew.
"""
REPEAT_S: Final = 30.0
"""Time after the end of a hold within which another failure counts as a repeat, in seconds. Higher holds the worker
longer after failures that are far apart; lower begins anew with a connection that breaks now and then.
"""
AGREE_S: Final = 2.0
"""Time within which the failures of several ingresses count as one cause, in seconds. Higher takes failures with
different causes for the end of the worker; lower has every ingress find out for itself.
"""
NUM_AGREEING: Final = 2
"""Ingresses that must agree. Higher places more requests on a worker that is gone; 1 has one ingress with a bad
connection take the worker from all others.
"""
MAX_PAIRS: Final = 10_000
"""Pairs of an ingress and a worker that are remembered. Beyond it the oldest are forgotten. Higher costs memory, some
200 bytes for each; lower places more requests where they fail.
"""

MAX_NEW: Final = 1000
"""Holds that wait to be shown. Further ones are not shown. Higher costs memory where nobody takes them, as in the
simulator; lower leaves holds out of the log when an ingress loses many workers at once.
"""

_NOBODY: Final = IngressId("")
"""Stands for the one caller that has no id: in tests and in the simulator."""


@final
class _Hold:
    __slots__ = ("began_at", "seconds")

    def __init__(self, began_at: float, seconds: float) -> None:
        self.began_at = began_at
        self.seconds = seconds


@final
class HeldWorker:
    """A worker on which an ingress gets no placement."""

    __slots__ = ("ingress", "seconds", "until", "worker")

    def __init__(self, ingress: IngressId, worker: WorkerId, seconds: float, until: float) -> None:
        self.ingress = ingress
        self.worker = worker
        self.seconds = seconds
        """How long the hold lasts, from its beginning."""
        self.until = until
        """When the hold ends."""


@final
class SuspectedWorkers:
    __slots__ = ("_by_ingress", "_new", "_num")

    def __init__(self) -> None:
        self._by_ingress: dict[IngressId, dict[WorkerId, _Hold]] = {}
        self._num = 0
        self._new: list[HeldWorker] = []

    def suspect(self, ingress: IngressId | None, worker: WorkerId, now: float) -> bool:
        """An ingress could not reach a worker. Returns whether several ingresses agree."""
        name = ingress or _NOBODY
        held = self._by_ingress.setdefault(name, {})
        before = held.pop(worker, None)
        if before is not None and now < before.began_at + before.seconds:
            held[worker] = before  # requests that were on their way when the hold began
        else:
            self._num += before is None
            held[worker] = begun = _Hold(now, _next_hold_s(before, now))
            if len(self._new) < MAX_NEW:
                self._new.append(HeldWorker(name, worker, begun.seconds, now + begun.seconds))
        while self._num > MAX_PAIRS:
            self._forget_oldest()
        agreeing = 0
        for of_ingress in self._by_ingress.values():
            hold = of_ingress.get(worker)
            agreeing += hold is not None and now - hold.began_at <= AGREE_S
        return agreeing >= NUM_AGREEING

    def of(self, ingress: IngressId | None, now: float) -> frozenset[WorkerId]:
        """Workers on which the ingress gets no placement now."""
        held = self._by_ingress.get(ingress or _NOBODY)
        if not held:
            return frozenset()
        return frozenset([worker for worker, hold in held.items() if now < hold.began_at + hold.seconds])

    def held(self, now: float) -> list[HeldWorker]:
        """All workers that are held back from an ingress now."""
        return [
            HeldWorker(ingress, worker, hold.seconds, hold.began_at + hold.seconds)
            for ingress, of_ingress in self._by_ingress.items()
            for worker, hold in of_ingress.items()
            if now < hold.began_at + hold.seconds
        ]

    def take_new(self) -> list[HeldWorker]:
        """The holds that have begun since the last call."""
        if not self._new:
            return []
        new, self._new = self._new, []
        return new

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone for good."""
        for ingress, held in list(self._by_ingress.items()):
            if held.pop(worker, None) is not None:
                self._num -= 1
                if not held:
                    del self._by_ingress[ingress]

    def validate(self) -> None:
        """Assert every invariant."""
        assert self._num == sum([len(held) for held in self._by_ingress.values()]) <= MAX_PAIRS
        assert len(self._new) <= MAX_NEW

    def _forget_oldest(self) -> None:
        ingress, held = next(iter(self._by_ingress.items()))
        del held[next(iter(held))]
        self._num -= 1
        if not held:
            del self._by_ingress[ingress]


def _next_hold_s(before: _Hold | None, now: float) -> float:
    """How long a hold that begins now lasts. `before`: the last one of the pair, which is over."""
    if before is None or now >= before.began_at + before.seconds + REPEAT_S:
        return LEAST_HOLD_S
    return min(2.0 * before.seconds, MOST_HOLD_S)
