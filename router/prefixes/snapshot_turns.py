"""SnapshotTurns: which workers may send a snapshot of their caches now.

A snapshot of a large worker takes the Scheduler tens of milliseconds. After a restart it needs those of all workers,
and asks for a few at a time. A worker that the index has dropped blocks of is in no hurry: such workers are asked one
at a time, and seldom. Neither kind waits for the other: a worker whose snapshot never comes, or never ends, keeps the
turn of nobody else.
"""

from typing import Final, final

from cluster.messages.ids import WorkerId

MOST_TURNS: Final = 4
"""Workers that may send a snapshot at the same time, beside one that blocks were dropped of. More has more messages
wait in the Scheduler; fewer leaves it idle between two snapshots after a restart.
"""
TURN_S: Final = 5.0
"""Time in which the next part of a snapshot must arrive, in seconds. After it another worker gets the turn. The whole
snapshot must arrive in it where blocks were dropped. Longer waits for workers that do not answer; shorter asks slow
workers twice.
"""
REFILL_S: Final = 1.0
"""Least time between two snapshots of workers that blocks were dropped of, in seconds. Longer keeps them partial for
longer; shorter costs the Scheduler time while it is busy.
"""


@final
class SnapshotTurns:
    __slots__ = ("_refilled_at", "_refilling", "_until")

    def __init__(self) -> None:
        self._until: dict[WorkerId, float] = {}
        """Workers that have the turn, and the end of each turn."""
        self._refilling: WorkerId | None = None
        """The worker that blocks were dropped of and whose snapshot is awaited."""
        self._refilled_at = float("-inf")
        """When such a worker was last asked."""

    def take(self, worker: WorkerId, now: float) -> bool:
        """Returns True if the worker is to send a snapshot now. It is not asked again before its turn is over."""
        self._end_late(now)
        if worker in self._until or len(self._until) >= MOST_TURNS:
            return False
        self._until[worker] = now + TURN_S
        return True

    def take_to_refill(self, worker: WorkerId, now: float) -> bool:
        """As `take`, for a worker that blocks were dropped of."""
        wait_s = REFILL_S if self._refilling is None else TURN_S
        if worker in self._until or now < self._refilled_at + wait_s:
            return False
        self._refilling, self._refilled_at = worker, now
        return True

    def part_came(self, worker: WorkerId, now: float) -> None:
        """A part of the worker's snapshot has arrived, and another one follows."""
        if worker in self._until:
            self._until[worker] = now + TURN_S

    def end(self, worker: WorkerId) -> None:
        """The worker's snapshot is complete, or is not needed any more."""
        self._until.pop(worker, None)
        if worker == self._refilling:
            self._refilling = None

    def _end_late(self, now: float) -> None:
        for worker in [worker for worker, until in self._until.items() if until <= now]:
            del self._until[worker]
