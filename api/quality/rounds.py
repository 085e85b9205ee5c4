"""ProbeRounds: the state of the probe in the replica that probes: targets, reference, verdicts, and what it shows. It
decides which target is visited next, and takes in what a visit has found. Pure.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from api.quality.board import CommandKind, LearningState, ProbeCommand, ProbeRun, QualityView, ReferenceView, TargetView
from api.quality.comparison import ProbeResult
from api.quality.learning import Learner
from api.quality.probe_set import Reference
from api.quality.schedule import SOON, ProbeTarget, Schedule, targets_of
from api.quality.target_record import TargetResult
from api.quality.verdicts import Verdicts
from api.quality.visit import Visit, VisitResult
from cluster.config.observability.quality_probe import QualityProbeConfig
from cluster.messages.ids import Path, Pool, WorkerId
from cluster.messages.placement import Pinned
from cluster.messages.views import ClusterView, WorkerView

MAX_AT_ONCE = 8
"""Visits at a time. More covers larger clusters within `every_s`; fewer has probes meet each other less."""
MAX_WITNESSES = 2
"""Other workers that are probed at once when a worker has answered wrongly. More finds sooner that the reference is at
fault; fewer costs less.
"""
LEARNING_ROUNDS = 2.0
"""Times of `every_s` after which a reference is learned from the workers that have answered, if these are half of all.
More waits longer for workers that cannot be probed; fewer learns from fewer workers.
"""
NO_MAJORITY = "the workers do not agree on an answer to any prompt"
TOO_FEW = "fewer than half of the targets have answered"


class ProbeRounds:
    def __init__(
        self,
        config: QualityProbeConfig,
        prompts: Sequence[str],
        reference: Reference | None,
        origin: str,
        chance: Callable[[], float],
    ) -> None:
        self._config = config
        self._prompts = prompts
        self.reference = reference
        self._origin = origin if reference is not None else "none"
        self._note: str | None = None
        self._learner = Learner(prompts)
        self._learning_since: float | None = None
        self._schedule = Schedule(config.every_s, config.max_share, chance)
        self.verdicts = Verdicts()
        self._epoch = 0
        """Number of the reference that counts: what was compared with another one says nothing."""
        self._workers: dict[WorkerId, WorkerView] = {}
        self._busy: set[WorkerId] = set()
        self._num_running = 0
        self._quiet_until = float("-inf")
        """The service is overloaded: nothing is probed until then."""
        self.skipped: list[ProbeTarget] = []
        """Targets on path P->D for which there was no other worker, until they are counted."""
        self.answered_at: dict[ProbeTarget, float] = {}
        """When each target last gave a whole answer."""
        self._run: ProbeRun | None = None
        self._run_left: set[ProbeTarget] = set()

    @property
    def workers(self) -> Mapping[WorkerId, WorkerView]:
        return self._workers

    @property
    def is_reference_usable(self) -> bool:
        return self.reference is not None and not self.verdicts.is_reference_at_fault

    @property
    def origin(self) -> str:
        return self._origin

    def see(self, view: ClusterView, now: float) -> None:
        """These workers live."""
        self._workers = {worker.worker: worker for worker in view.workers}
        targets = targets_of(view.workers)
        exist = set(targets)
        self._schedule.keep(targets, now)
        self._learner.keep(targets)
        self.verdicts.keep({worker.worker: worker.pool for worker in view.workers}, now)
        self.answered_at = {target: at for target, at in self.answered_at.items() if target in exist}
        self._run_left &= exist
        if self._learning_since is None:
            self._learning_since = now

    def adopt(self) -> None:
        """Go on with the quarantines that another replica has begun."""
        self.verdicts.adopt({id: worker.quarantined for id, worker in self._workers.items() if worker.quarantined})

    def obey(self, command: ProbeCommand, now: float) -> None:
        if command.kind is CommandKind.RELEASE:
            if command.worker is not None:
                self.verdicts.release(command.worker)
            return
        if command.kind is CommandKind.LEARN:
            self._use(None, "none", None)
            self._learning_since = now
        self._quiet_until = float("-inf")
        self._schedule.hurry(now)
        self._run_left = set(self._schedule.targets)
        learning = LearningState.LEARNING if command.kind is CommandKind.LEARN else None
        self._run = ProbeRun(id=command.id, num_done=0, num_targets=len(self._run_left), learning=learning)

    def next_visit(self, now: float) -> Visit | None:
        """What is visited next; it counts as begun. None if nothing is due or may be visited now."""
        waiting: set[ProbeTarget] = set()
        """Targets whose other worker is probed now, or rests."""
        while self._num_running < MAX_AT_ONCE and (now >= self._quiet_until or self._run_left):
            target = self._schedule.next(now, self._busy, waiting)
            if target is None:
                return None
            others = self._others(target) if target.path is Path.PREFILL_DECODE else []
            ready = [other for other in others if self._is_ready(other, target, now)]
            if ready or target.path is not Path.PREFILL_DECODE:
                return self._begun(target, ready)
            if others:
                waiting.add(target)
                continue
            self.skipped.append(target)
            self.verdicts.note(target, TargetResult(ProbeResult.SKIPPED), now)
            self._done(target, now, now, set(), is_soon=True)
        return None

    def ended(self, visit: Visit, found: VisitResult, began_at: float, now: float) -> None:
        """A visit has ended."""
        target = visit.target
        self._busy -= visit.workers
        self._num_running -= 1
        if found.is_overload:
            self._quiet_until = now + SOON * self._config.every_s
        if found.result not in (ProbeResult.FAILED, ProbeResult.SKIPPED):
            self.answered_at[target] = now
        is_soon = not found.result.is_right
        if visit.epoch != self._epoch:
            self._schedule.visited(target, visit.workers, began_at, now, is_soon=is_soon)
            self._schedule.hurry(now, self._run_left & {target})
            return
        if found.answers is None:
            seen = TargetResult(found.result, found.difference, found.prompt, found.num_prompts)
            self.verdicts.note(target, seen, now)
        for prompt, answer in (found.answers or {}).items():
            self._learner.note(target, prompt, answer, found.repeats.get(prompt))
        self._done(target, began_at, now, visit.workers, is_soon=is_soon)
        if found.result is ProbeResult.DIFFERS:
            self._schedule.hasten(self.verdicts.witnesses(target.worker)[:MAX_WITNESSES], now)

    def learned(self, fingerprint: str, model: str, now: float, unix_time: float) -> Reference | None:
        """The reference that has just been learned. None at all other times."""
        if self.reference is not None or self._learning_since is None:
            return None
        is_patient = now < self._learning_since + LEARNING_ROUNDS * self._config.every_s
        answers = self._learner.learned(list(self._schedule.targets), waits_for_all=is_patient)
        if answers is None:
            if not is_patient:
                self._failed_to_learn(TOO_FEW)
            return None
        learner = self._learner
        self._learner, self._learning_since = Learner(self._prompts), now
        if not answers:
            self._failed_to_learn(NO_MAJORITY)
            return None
        left_out = [prompt for prompt in self._prompts if prompt not in answers]
        reference = Reference(
            fingerprint=fingerprint,
            model=model,
            learned_at=unix_time,
            answers=answers,
            tolerances=learner.tolerances(answers),
        )
        self._use(reference, "learned", f"workers do not agree on {', '.join(left_out)}" if left_out else None)
        self._end_learning(LearningState.LEARNED)
        return reference

    def view(self, replica: str, now: float, unix_time: float) -> QualityView:
        return QualityView(
            replica=replica,
            quarantine=self._config.quarantines,
            every_s=self._config.every_s,
            reference=self._reference_view(),
            targets=[self._target_view(target, unix_time - now) for target in sorted(self._schedule.targets)],
            run=self._run,
        )

    def _use(self, reference: Reference | None, origin: str, note: str | None) -> None:
        self.reference, self._origin, self._note = reference, origin, note
        self._learner = Learner(self._prompts)
        self._epoch += 1
        self.verdicts.begin_anew()

    def _failed_to_learn(self, note: str) -> None:
        self._note = note
        self._end_learning(LearningState.FAILED)

    def _end_learning(self, state: LearningState) -> None:
        if self._run is not None and self._run.learning is LearningState.LEARNING:
            self._run = msgspec.structs.replace(self._run, learning=state)

    def _begun(self, target: ProbeTarget, others: list[WorkerId]) -> Visit:
        """`others`: those that may be beside it on path P->D."""
        worker, number = target.worker, self._schedule.number(target)
        other = others[number % len(others)] if others else None
        is_prefill = self._workers[worker].pool is Pool.PREFILL
        pinned = Pinned(worker, other) if is_prefill else Pinned(other, worker)
        visit = Visit(target, pinned, other, number, self._epoch)
        self._busy |= visit.workers
        self._num_running += 1
        return visit

    def _others(self, target: ProbeTarget) -> list[WorkerId]:
        """The workers with a link to that of the target whose own answers are right, in the order of their names."""
        own = self._workers[target.worker]
        if own.pool is Pool.PREFILL:
            linked = [other.worker for other in self._workers.values() if own.worker in other.links]
        else:
            linked = [other for other in own.links if other in self._workers]
        return sorted(other for other in linked if not self.verdicts.is_suspect(other))

    def _is_ready(self, other: WorkerId, target: ProbeTarget, now: float) -> bool:
        return other not in self._busy and self._schedule.may_be_beside(other, target, now)

    def _done(self, target: ProbeTarget, began_at: float, now: float, workers: set[WorkerId], *, is_soon: bool) -> None:
        self._schedule.visited(target, workers, began_at, now, is_soon=is_soon)
        self._run_left.discard(target)
        if self._run is not None:
            num_done = self._run.num_targets - len(self._run_left)
            self._run = msgspec.structs.replace(self._run, num_done=num_done)

    def _reference_view(self) -> ReferenceView:
        reference = self.reference
        return ReferenceView(
            origin=self._origin,
            learned_at=reference.learned_at if reference else None,
            num_prompts=len(reference.answers) if reference else 0,
            is_at_fault=self.verdicts.is_reference_at_fault,
            note=self._note,
        )

    def _target_view(self, target: ProbeTarget, to_unix_time: float) -> TargetView:
        record = self.verdicts.record(target)
        return TargetView(
            worker=target.worker,
            path=target.path,
            score=record.score,
            result=record.result,
            at=None if record.at is None else record.at + to_unix_time,
            difference=record.difference,
            quarantined=self.verdicts.quarantined.get(target.worker),
        )
