"""Drains: the workers that an operator drains (`baton drain`), and those that the autoscaler is about to stop.

A draining worker gets a request only if no other worker can take it, in either pool. Its running requests finish, and
its leases are redeemed or expire. A drain ends when an operator undoes it, or when the worker is gone: its id never
comes back. A retiring worker gets a request only if no other worker of its pool can take it.
"""

from collections.abc import Collection, Iterable
from typing import Final, final

from cluster.messages.ids import WorkerId

MAX_DRAINS: Final = 1000
"""Drains that are remembered. Beyond it, the oldest drains of workers that are not known are forgotten. Higher costs
memory and bytes in Ray's key-value store, some 50 for each; lower may forget the drain of a worker that the Scheduler
does not hear of for a while.
"""


@final
class Drains:
    __slots__ = ("_in_order", "_retiring", "_retiring_until", "workers")

    def __init__(self) -> None:
        self.workers: frozenset[WorkerId] = frozenset()
        """The workers that drain. Some of them may be gone, or may not have reported yet."""
        self._in_order: list[WorkerId] = []
        """The same, the one that was drained last comes last."""
        self._retiring: frozenset[WorkerId] = frozenset()
        self._retiring_until = float("-inf")

    def with_change(
        self, worker: WorkerId, known: Collection[WorkerId], *, drains: bool, most: int = MAX_DRAINS
    ) -> list[WorkerId]:
        """The drains after a change of one worker, which is the last one if it drains. `known`: the workers that
        report. More than `most` are returned only if so many of them are known.
        """
        kept = [one for one in self._in_order if one != worker]
        changed = [*kept, worker] if drains else kept
        surplus = len(changed) - most
        if surplus > 0:
            gone = frozenset([one for one in changed if one not in known][:surplus])
            changed = [one for one in changed if one not in gone]
        return changed

    def put(self, workers: Iterable[WorkerId]) -> None:
        """These workers drain, and no others."""
        self._in_order = list(workers)
        self.workers = frozenset(self._in_order)

    def retire(self, workers: frozenset[WorkerId], until: float) -> bool:
        """These workers will be stopped soon, and no others. Returns whether they are others than before."""
        self._retiring_until = until
        is_new = workers != self._retiring
        self._retiring = workers
        return is_new

    def retiring(self, now: float) -> frozenset[WorkerId]:
        """The workers that will be stopped soon."""
        return self._retiring if now < self._retiring_until else frozenset()
