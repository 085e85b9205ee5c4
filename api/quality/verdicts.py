"""Verdicts: what the results of probes say of each worker. Pure.

1. The score of a worker on a path is the share of right answers among its last WINDOW ones.
2. A worker goes into quarantine after STRIKES wrong answers in a row on the path on which it works alone. On path P->D
   the other worker, or the handoff, may be wrong; a wrong pair is convicted by the verification of handoffs. While a
   worker has a strike, it is no partner of others.
3. There must be a witness: another worker that has agreed with the reference since the first of these answers. A
   reference that every worker fails is at fault itself, and puts no worker into quarantine.
4. At most half of a pool is in quarantine, and never its last worker.
5. RECOVERIES right answers in a row end a quarantine, and so does an operator.
"""

from collections import deque
from collections.abc import Mapping

from api.quality.comparison import Difference, ProbeResult
from api.quality.schedule import PATHS, ProbeTarget
from cluster.messages.ids import Pool, WorkerId

WINDOW = 8
"""Answers of a target that its score counts. More forgets a fault later; fewer follows single answers."""
STRIKES = 2
"""Wrong answers in a row before a quarantine. More serves wrong answers for longer; one takes a worker away for one
answer that a rare rounding has changed.
"""
RECOVERIES = 2
"""Right answers in a row that end a quarantine. More keeps a worker unused for longer; one gives requests to a worker
that answers wrongly now and then.
"""
MOST_OF_POOL = 0.5
"""Share of a pool's workers that may be in quarantine. Higher leaves fewer workers for all requests if the reference is
wrong; lower leaves wrong workers in use.
"""


class TargetRecord:
    """The last results of a worker on a path."""

    def __init__(self) -> None:
        self._right: deque[bool] = deque(maxlen=WINDOW)
        self.result: ProbeResult | None = None
        """The latest one."""
        self.at: float | None = None
        """When it came."""
        self.difference: Difference | None = None
        """The latest one that was not right, or that rounding explains."""
        self.streak = 0
        """Right answers in a row, or wrong ones if negative."""
        self.streak_since = 0.0

    @property
    def score(self) -> float | None:
        """None without an answer."""
        return sum(self._right) / len(self._right) if self._right else None

    def note(self, result: ProbeResult, difference: Difference | None, now: float) -> None:
        self.result, self.at = result, now
        self.difference = difference or self.difference
        if result in (ProbeResult.FAILED, ProbeResult.SKIPPED):
            return
        self._right.append(result.is_right)
        if (self.streak > 0) is not result.is_right or not self.streak:
            self.streak, self.streak_since = 0, now
        self.streak += 1 if result.is_right else -1


class Verdicts:
    def __init__(self) -> None:
        self._records: dict[ProbeTarget, TargetRecord] = {}
        self._pools: dict[WorkerId, Pool] = {}
        self.quarantined: dict[WorkerId, str] = {}
        """Why, for each worker that is in quarantine, or would be if quarantine is off."""

    def keep(self, pools: Mapping[WorkerId, Pool]) -> None:
        """These workers live, and no others."""
        self._pools = dict(pools)
        self._records = {target: record for target, record in self._records.items() if target.worker in pools}
        before, self.quarantined = self.quarantined, {}
        for worker, why in before.items():
            self._quarantine(worker, why)

    def adopt(self, quarantined: Mapping[WorkerId, str]) -> None:
        """These workers were in quarantine before this replica began to probe."""
        for worker, why in quarantined.items():
            self._quarantine(worker, why)

    def record(self, target: ProbeTarget) -> TargetRecord:
        return self._records.get(target) or TargetRecord()

    @property
    def scores(self) -> dict[ProbeTarget, float]:
        scores = {target: record.score for target, record in self._records.items()}
        return {target: score for target, score in scores.items() if score is not None}

    def note(self, target: ProbeTarget, result: ProbeResult, difference: Difference | None, now: float) -> None:
        """A probe has ended."""
        if target.worker in self._pools:
            self._records.setdefault(target, TargetRecord()).note(result, difference, now)
            self._judge()

    def is_suspect(self, worker: WorkerId) -> bool:
        """Whether the worker's latest answer alone was wrong, so that it is no partner of others."""
        return worker in self.quarantined or self._alone(worker).streak < 0

    def release(self, worker: WorkerId) -> None:
        """An operator says that the worker is right. Its next answers count anew."""
        self.quarantined.pop(worker, None)
        for target in [target for target in self._records if target.worker == worker]:
            del self._records[target]

    def begin_anew(self) -> None:
        """Another reference counts from now on: what was compared with the one before says nothing."""
        self._records.clear()
        self.quarantined.clear()

    @property
    def is_reference_at_fault(self) -> bool:
        """Whether every worker that has answered differs from the reference, and at least two do."""
        alone = [self._alone(worker) for worker in self._pools]
        answered = [record for record in alone if record.streak]
        return len(answered) > 1 and all(record.streak < 0 for record in answered)

    def witnesses(self, worker: WorkerId) -> list[ProbeTarget]:
        """The targets of other workers whose next answers may show that the reference is right."""
        return [self._target_alone(other) for other in self._pools if other != worker and not self.is_suspect(other)]

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        for pool in Pool:
            of_pool = [worker for worker, own in self._pools.items() if own is pool]
            num = sum(worker in self.quarantined for worker in of_pool)
            assert num <= MOST_OF_POOL * len(of_pool)
        assert self.quarantined.keys() <= self._pools.keys()

    def _judge(self) -> None:
        if self.is_reference_at_fault:
            self.quarantined.clear()
            return
        for worker in list(self.quarantined):
            if self._alone(worker).streak >= RECOVERIES:
                del self.quarantined[worker]
        for worker in self._pools:
            record = self._alone(worker)
            if record.streak <= -STRIKES and worker not in self.quarantined and self._has_witness(worker, record):
                self._quarantine(worker, _why(record))

    def _quarantine(self, worker: WorkerId, why: str) -> None:
        """Does nothing for a worker that is gone, and if it would take too much of the pool."""
        if worker not in self._pools or worker in self.quarantined:
            return
        of_pool = [other for other, pool in self._pools.items() if pool is self._pools[worker]]
        if 1 + sum(other in self.quarantined for other in of_pool) <= MOST_OF_POOL * len(of_pool):
            self.quarantined[worker] = why

    def _has_witness(self, worker: WorkerId, record: TargetRecord) -> bool:
        others = (self._alone(other) for other in self._pools if other != worker)
        return any(other.streak > 0 and (other.at or 0.0) >= record.streak_since for other in others)

    def _target_alone(self, worker: WorkerId) -> ProbeTarget:
        return ProbeTarget(worker, PATHS[self._pools[worker]][0])

    def _alone(self, worker: WorkerId) -> TargetRecord:
        """The results of the worker on the path on which it works alone."""
        return self.record(self._target_alone(worker))


def _why(record: TargetRecord) -> str:
    difference = record.difference
    assert difference is not None
    return (
        f"{-record.streak} answers in a row differ from the reference: of prompt {difference.prompt}, token "
        f"{difference.position} is {difference.got} and should be {difference.expected}"
    )
