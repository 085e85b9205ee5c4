"""KnownWorkers: an ingress's copy of the Scheduler's roster (router/load/roster.py). Pure."""

from cluster.messages.ids import Pool, WorkerId
from cluster.messages.views import Readiness, RosterChange, RosterEntry


class KnownWorkers:
    def __init__(self, may_lack: Pool | None = None) -> None:
        """`may_lack`: the pool that may be empty, because the other one does its work."""
        self._may_lack = may_lack
        self.by_id: dict[WorkerId, RosterEntry] = {}
        self.version = 0
        """The version of the roster that this is a copy of. 0 if it is of no version of the present Scheduler."""
        self._num_links = 0
        self._mismatch: str | None = None

    def begin_anew(self) -> None:
        """Another Scheduler process answers from now on. The workers of the last one stay until it does."""
        self.version = 0

    def take(self, change: RosterChange) -> None:
        """Take an answer of the Scheduler. An answer that another one has overtaken changes nothing."""
        if change.since == 0 and change.version >= self.version:
            self.by_id = {}
        elif change.since != self.version:
            return
        for worker in change.left:
            self.by_id.pop(worker, None)
        for entry in change.joined:
            self.by_id[entry.worker] = entry
        self.version, self._num_links = change.version, change.num_links
        self._mismatch = change.mismatch

    @property
    def readiness(self) -> Readiness:
        num_prefill = sum(entry.pool is Pool.PREFILL for entry in self.by_id.values())
        return Readiness(
            num_prefill, len(self.by_id) - num_prefill, self._num_links, self._mismatch, may_lack=self._may_lack
        )
