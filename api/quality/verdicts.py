"""Verdicts: what the results of probes say of each worker. Pure.

1. The score of a worker on a path is the share of right answers among its last WINDOW ones.
2. A prompt fails on a worker if the latest of its answers to that prompt is wrong, on the path on which it works alone.
   A worker on which STRIKES prompts fail goes into quarantine. If only one prompt can be asked, STRIKES wrong answers
   to it in a row do. On path P->D the other worker, or the handoff, may be wrong; a wrong pair is convicted by the
   verification of handoffs. A worker whose latest answer was wrong is no partner of others.
3. A prompt counts only if another worker answers it rightly: the reference of a prompt that all fail is wrong. And
   another worker must have agreed with the reference since the first of these answers. A reference that every worker
   fails is at fault itself, and puts no worker into quarantine.
4. At most half of a pool is in quarantine, and never its last worker.
5. RECOVERIES right answers in a row end a quarantine once no prompt fails, and so does an operator.
6. What is known of a worker that is missing is kept for ABSENT_S: it may be back in the next view.
"""

from collections.abc import Iterator, Mapping

from api.quality.schedule import PATHS, ProbeTarget
from api.quality.target_record import TargetRecord, TargetResult
from cluster.messages.ids import Pool, WorkerId

RECOVERIES = 2
"""Right answers in a row that end a quarantine. More keeps a worker unused for longer; one gives requests to a worker
that answers wrongly now and then.
"""
MOST_OF_POOL = 0.5
"""Share of a pool's workers that may be in quarantine. Higher leaves fewer workers for all requests if the reference is
wrong; lower leaves wrong workers in use.
"""
ABSENT_S = 600.0
"""Time for which the record and the quarantine of a worker are kept that is in no view, in seconds. Longer takes memory
for workers that are gone; shorter gives a wrong worker requests that was missing for a while.
"""
MAX_ABSENT = 256
"""Missing workers of which something is kept. More takes memory; fewer forgets when many workers are missing.
"""


class Verdicts:
    def __init__(self) -> None:
        self._records: dict[ProbeTarget, TargetRecord] = {}
        self._pools: dict[WorkerId, Pool] = {}
        self._absent: dict[WorkerId, float] = {}
        """The missing workers of which something is kept, and since when, the oldest first."""
        self._wrong: dict[WorkerId, tuple[Pool, str]] = {}
        """Pool and reason of each worker that has deserved a quarantine and has not recovered."""

    def keep(self, pools: Mapping[WorkerId, Pool], now: float) -> None:
        """These workers live, and no others."""
        of_interest = {target.worker for target in self._records} | self._wrong.keys()
        for worker in of_interest - pools.keys():
            self._absent.setdefault(worker, now)
        self._absent = {worker: since for worker, since in self._absent.items() if worker not in pools}
        kept = [worker for worker, since in self._absent.items() if now - since <= ABSENT_S][-MAX_ABSENT:]
        self._absent = {worker: self._absent[worker] for worker in kept}
        self._pools = dict(pools)
        known = pools.keys() | self._absent.keys()
        self._records = {target: record for target, record in self._records.items() if target.worker in known}
        self._wrong = {worker: wrong for worker, wrong in self._wrong.items() if worker in known}

    def adopt(self, quarantined: Mapping[WorkerId, str]) -> None:
        """These workers were in quarantine before this replica began to probe."""
        for worker, why in quarantined.items():
            self._convict(worker, why)

    @property
    def quarantined(self) -> dict[WorkerId, str]:
        """Why, for each live worker that is in quarantine, or would be if quarantine is off."""
        if self.is_reference_at_fault:
            return {}
        found: dict[WorkerId, str] = {}
        room = {pool: int(MOST_OF_POOL * sum(own is pool for own in self._pools.values())) for pool in Pool}
        for worker, (pool, why) in self._wrong.items():
            if worker in self._pools and room[pool] > 0:
                room[pool] -= 1
                found[worker] = why
        return found

    @property
    def told(self) -> dict[WorkerId, str]:
        """What Schedulers are told: they may see a worker again before this replica does."""
        if self.is_reference_at_fault:
            return {}
        absent = {worker: why for worker, (_, why) in self._wrong.items() if worker in self._absent}
        return self.quarantined | absent

    def record(self, target: ProbeTarget) -> TargetRecord:
        return self._records.get(target) or TargetRecord()

    @property
    def scores(self) -> dict[ProbeTarget, float]:
        """Of live workers."""
        scores = {target: record.score for target, record in self._records.items() if target.worker in self._pools}
        return {target: score for target, score in scores.items() if score is not None}

    def note(self, target: ProbeTarget, found: TargetResult, now: float) -> None:
        """A probe has ended."""
        if target.worker in self._pools:
            self._records.setdefault(target, TargetRecord()).note(found, now)
            self._judge()

    def is_suspect(self, worker: WorkerId) -> bool:
        """Whether the worker's latest answer alone was wrong, so that it is no partner of others."""
        return worker in self._wrong or self._alone(worker).streak < 0

    def release(self, worker: WorkerId) -> None:
        """An operator says that the worker is right. Its next answers count anew."""
        self._wrong.pop(worker, None)
        for target in [target for target in self._records if target.worker == worker]:
            del self._records[target]

    def begin_anew(self) -> None:
        """Another reference counts from now on: what was compared with the one before says nothing."""
        self._records.clear()
        self._wrong.clear()

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
        quarantined = self.quarantined
        for pool in Pool:
            of_pool = [worker for worker, own in self._pools.items() if own is pool]
            assert sum(worker in quarantined for worker in of_pool) <= MOST_OF_POOL * len(of_pool)
        assert quarantined.keys() <= self._pools.keys()
        assert not self._absent.keys() & self._pools.keys()
        assert len(self._absent) <= MAX_ABSENT
        known = self._pools.keys() | self._absent.keys()
        assert self._wrong.keys() <= known
        assert {target.worker for target in self._records} <= known

    def _judge(self) -> None:
        for worker in self._wrong.keys() & self._pools.keys():
            record = self._alone(worker)
            if record.streak >= RECOVERIES and not record.failing:
                del self._wrong[worker]
        if self.is_reference_at_fault:
            return
        for worker in self._pools:
            record = self._alone(worker)
            if record.failing and worker not in self._wrong and self._is_wrong(worker, record):
                self._convict(worker, _why(record))

    def _convict(self, worker: WorkerId, why: str) -> None:
        """Does nothing for a worker that is gone, and if it would take too much of the pool."""
        pool = self._pools.get(worker)
        if pool is None or worker in self._wrong:
            return
        of_pool = {other for other, own in self._pools.items() if own is pool}
        wrong = {other for other, (own, _) in self._wrong.items() if own is pool}
        if 1 + len(wrong) <= MOST_OF_POOL * len(of_pool | wrong):
            self._wrong[worker] = (pool, why)

    def _is_wrong(self, worker: WorkerId, record: TargetRecord) -> bool:
        others = [other for other in self._others(worker) if other.streak]
        right = {prompt for other in others for prompt in other.right}
        strikes = [one for one in record.failing if one.prompt in right]
        since = min((one.at for one in strikes), default=0.0)
        has_witness = any(other.streak > 0 and (other.at or 0.0) >= since for other in others)
        return has_witness and record.has_struck_out(len(strikes))

    def _others(self, worker: WorkerId) -> Iterator[TargetRecord]:
        return (self._alone(other) for other in self._pools if other != worker)

    def _target_alone(self, worker: WorkerId) -> ProbeTarget:
        return ProbeTarget(worker, PATHS[self._pools[worker]][0])

    def _alone(self, worker: WorkerId) -> TargetRecord:
        """The results of the worker on the path on which it works alone."""
        return self.record(self._target_alone(worker))


def _why(record: TargetRecord) -> str:
    failing = record.failing
    difference = failing[-1].difference
    assert difference is not None
    return (
        f"answers to {', '.join(sorted(one.prompt for one in failing))} differ from the reference: of prompt "
        f"{difference.prompt}, token {difference.position} is {difference.got} and should be {difference.expected}"
    )
