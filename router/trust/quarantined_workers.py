"""QuarantinedWorkers: the workers that answer wrongly, as the ingress replica that probes them tells (docs/quality.md).

A worker in quarantine reports and lives as any other, and gets no requests but probes. The Scheduler remembers no
quarantine by itself: a new Scheduler is told again, and one that nobody tells of any more ends. Of two replicas that
probe, the one whose lease has the higher number is heeded: the other one has lost its lease and does not know it.
"""

from collections.abc import Mapping
from typing import Final, final

from cluster.messages.ids import WorkerId

KEPT_S: Final = 300.0
"""Time for which a quarantine lasts that no ingress tells of again, in seconds. Longer keeps a worker unused when no
replica probes any more; shorter gives a wrong worker requests while another replica takes the probes over.
"""


@final
class QuarantineChange:
    """What has changed with the latest word of an ingress."""

    __slots__ = ("begun", "ended")

    def __init__(self, begun: dict[WorkerId, str], ended: list[WorkerId]) -> None:
        self.begun = begun
        """Why, for each worker."""
        self.ended = ended


@final
class QuarantinedWorkers:
    __slots__ = ("_lease", "_until", "_why")

    def __init__(self) -> None:
        self._why: dict[WorkerId, str] = {}
        self._until = float("-inf")
        self._lease = 0

    def told(self, workers: Mapping[WorkerId, str], now: float, lease: int = 0) -> QuarantineChange:
        """These workers are in quarantine, and no others are. `lease`: number of the lease of who tells. Nothing
        changes if one with a higher number has told within KEPT_S.
        """
        if lease < self._lease and now < self._until:
            return QuarantineChange({}, [])
        before = self.of(now)
        begun = {worker: why for worker, why in workers.items() if worker not in before}
        ended = [worker for worker in before if worker not in workers]
        self._why, self._until, self._lease = dict(workers), now + KEPT_S, lease
        return QuarantineChange(begun, ended)

    def of(self, now: float) -> Mapping[WorkerId, str]:
        """Why, for each worker that is in quarantine now."""
        return self._why if self._why and now < self._until else {}
