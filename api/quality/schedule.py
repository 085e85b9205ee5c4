"""Schedule: which worker is probed next, on which path, and when. Pure.

Every worker is probed on every path that it takes part in, within `every_s` of the last time. The next time is a bit
earlier by chance, so that probes spread. A worker is probed for at most `max_share` of its time: after a probe that
took `t` seconds the worker rests until `t / max_share` seconds have passed since the probe began. Time of earlier
probes that it has not rested for yet is added. Both workers of path P->D rest. If the share does not suffice for
`every_s`, probes come later.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from cluster.messages.ids import Path, Pool, WorkerId
from cluster.messages.views import WorkerView

EARLIEST = 0.75
"""Part of `every_s` after which a target is probed again at the earliest. Higher probes all targets at the same times;
lower probes more often than needed.
"""
SOON = 0.1
"""Part of `every_s` after which a target is probed again if its answer differed, or if the probe did not run. Higher
finds the second wrong answer later; lower asks a busy worker more often.
"""
PATHS = {Pool.PREFILL: (Path.PREFILL, Path.PREFILL_DECODE), Pool.DECODE: (Path.DECODE, Path.PREFILL_DECODE)}
"""The paths that a worker of each pool takes part in. On the first one it works alone."""


class ProbeTarget(NamedTuple):
    """A worker on a path."""

    worker: WorkerId
    path: Path


def targets_of(workers: Iterable[WorkerView]) -> list[ProbeTarget]:
    """Path P->D is none of a worker that has no link."""
    several = list(workers)
    linked = {prefill for worker in several for prefill in worker.links}
    linked |= {worker.worker for worker in several if worker.links}
    return [
        ProbeTarget(worker.worker, path)
        for worker in several
        for path in PATHS[worker.pool]
        if path is not Path.PREFILL_DECODE or worker.worker in linked
    ]


class Schedule:
    def __init__(self, every_s: float, max_share: float, chance: Callable[[], float]) -> None:
        """`chance` returns numbers in [0, 1)."""
        self._every_s = every_s
        self._max_share = max_share
        self._chance = chance
        self._due_at: dict[ProbeTarget, float] = {}
        self._rests_until: dict[WorkerId, float] = {}
        self._num_visits: dict[ProbeTarget, int] = {}
        self._is_hurried: set[ProbeTarget] = set()
        """Targets that an operator has asked to be probed now, whatever share of time it takes."""

    @property
    def targets(self) -> Collection[ProbeTarget]:
        return self._due_at.keys()

    def keep(self, targets: Collection[ProbeTarget], now: float) -> None:
        """These targets exist. New ones are spread over `every_s`."""
        for gone in self._due_at.keys() - set(targets):
            del self._due_at[gone]
            self._num_visits.pop(gone, None)
            self._is_hurried.discard(gone)
        for target in targets:
            if target not in self._due_at:
                self._due_at[target] = now + self._every_s * self._chance()
        workers = {target.worker for target in targets}
        self._rests_until = {worker: at for worker, at in self._rests_until.items() if worker in workers}

    def next(self, now: float, busy: Collection[WorkerId], but: Collection[ProbeTarget] = ()) -> ProbeTarget | None:
        """The target that is due for longest, of workers that may be probed now. `busy`: workers that are probed;
        `but`: targets that are left out.
        """
        due = [
            (at, target)
            for target, at in self._due_at.items()
            if at <= now
            and target.worker not in busy
            and target not in but
            and (target in self._is_hurried or self._rests_until.get(target.worker, now) <= now)
        ]
        return min(due)[1] if due else None

    def may_be_beside(self, worker: WorkerId, target: ProbeTarget, now: float) -> bool:
        """Whether a worker may be the other one of a probe on path P->D."""
        return target in self._is_hurried or self._rests_until.get(worker, now) <= now

    def number(self, target: ProbeTarget) -> int:
        """How many times the target was probed."""
        return self._num_visits.get(target, 0)

    def visited(
        self, target: ProbeTarget, workers: Iterable[WorkerId], began_at: float, now: float, *, is_soon: bool = False
    ) -> None:
        """A probe of the target has ended. `workers`: those that it ran on. `is_soon`: the target is probed again
        before others are.
        """
        for worker in workers:
            rests = max(self._rests_until.get(worker, began_at), began_at)
            self._rests_until[worker] = rests + (now - began_at) / self._max_share
        if target in self._due_at:
            self._is_hurried.discard(target)
            self._num_visits[target] = self.number(target) + 1
            share = SOON if is_soon else EARLIEST + (1.0 - EARLIEST) * self._chance()
            self._due_at[target] = now + self._every_s * share

    def hasten(self, targets: Iterable[ProbeTarget], now: float) -> None:
        """These targets are due now, as far as their workers may be probed."""
        for target in targets:
            if target in self._due_at:
                self._due_at[target] = min(self._due_at[target], now)

    def hurry(self, now: float, targets: Collection[ProbeTarget] | None = None) -> None:
        """An operator wants these targets to be probed now. None stands for all."""
        several = list(self._due_at if targets is None else targets)
        self.hasten(several, now)
        self._is_hurried.update(target for target in several if target in self._due_at)
