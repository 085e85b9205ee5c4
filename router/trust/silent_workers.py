"""SilentWorkers: which workers have not been heard of for long, by the time in which this Scheduler could hear them.

A Scheduler that stood still (its process was stopped, or its machine was) has heard no worker meanwhile. The time
between two of its steps shows it: workers report several times a second, so a long time without any step counts as
LONGEST_STEP_S.

Where all workers are silent and nobody asks for anything, the steps are rare, and a worker is silent for long after
some more of them.
"""

from collections import OrderedDict
from typing import Final, final

from cluster.messages.ids import WorkerId

LONGEST_STEP_S: Final = 1.0
"""Longest time between two steps of the Scheduler that counts in full, in seconds. Longer forgets workers that were not
heard because the Scheduler stood still a few times; shorter keeps dead workers where nobody else reports or asks.
"""


@final
class SilentWorkers:
    __slots__ = ("_awake_s", "_heard_at", "_stepped_at")

    def __init__(self) -> None:
        self._awake_s = 0.0
        """Time in which the Scheduler could hear workers, in seconds."""
        self._stepped_at = float("-inf")
        self._heard_at: OrderedDict[WorkerId, float] = OrderedDict()
        """`_awake_s` when each worker was last heard. The one that has been silent for longest is first."""

    def step(self, now: float) -> None:
        """The Scheduler does something now, whatever it is. To be called before `heard` and `longer_than`."""
        if now > self._stepped_at:
            self._awake_s += min(now - self._stepped_at, LONGEST_STEP_S)
            self._stepped_at = now

    def heard(self, worker: WorkerId) -> None:
        self._heard_at[worker] = self._awake_s
        self._heard_at.move_to_end(worker)

    def forget(self, worker: WorkerId) -> None:
        self._heard_at.pop(worker, None)

    def longest(self, seconds: float) -> WorkerId | None:
        """The worker that has been silent for longest. None if that is not more than `seconds`."""
        for worker, heard_at in self._heard_at.items():
            return worker if self._awake_s - heard_at > seconds else None
        return None

    def validate(self, workers: frozenset[WorkerId]) -> None:
        """Assert every invariant. `workers`: those that are known."""
        assert self._heard_at.keys() == workers
        times = list(self._heard_at.values())
        assert times == sorted(times) and all(at <= self._awake_s for at in times)
