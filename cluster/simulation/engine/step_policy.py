"""StepPolicy: how many prompt tokens a step of one simulated engine computes, and of which prompts first. Pure.

These are the rules of Baton's scheduler in vLLM (cluster/engine_scheduler/deadline_scheduler.py), or vLLM's own where
`EngineSetting` says so. An engine has its own model of its steps, which it learns from them.
"""

from bisect import bisect_left, insort_right
from collections.abc import Iterable
from math import inf

from cluster.messages.reports import StepSample
from cluster.simulation.engine.engine_request import EngineRequest, Phase
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.engine.running_batch import RunningBatch
from router.prediction.learned_latency import LatencyModel
from router.prediction.step_model import StepModel
from router.prediction.step_pacer import StepPacer, Wanted
from router.prediction.step_room import StepRoom


class StepPolicy:
    __slots__ = ("_learned", "_pacer", "_setting", "waiting")

    def __init__(self, setting: EngineSetting, prior: StepModel | None) -> None:
        """`prior`: what the engine expects of its steps before it has learned from them."""
        self._setting = setting
        self._learned = LatencyModel(prior)
        self._pacer = StepPacer()
        self.waiting: list[EngineRequest] = []
        """Requests without memory, in the order in which they are admitted."""

    def add(self, request: EngineRequest) -> None:
        if not self._setting.by_deadline:
            request.due_at = inf
        insort_right(self.waiting, request, key=_due)

    def put_back(self, request: EngineRequest) -> None:
        """A request that was preempted comes before its equals."""
        self.waiting.insert(bisect_left(self.waiting, request.due_at, key=_due), request)

    def in_order(self, prefilling: Iterable[EngineRequest]) -> list[EngineRequest]:
        """Prompts that are partly computed, in the order in which they go on."""
        return sorted(prefilling, key=_due) if self._setting.overtakes else list(prefilling)

    def preempted_next(self, batch: RunningBatch) -> EngineRequest:
        """The request that gives its memory to others: of the lowest class the one due last, the newest of equals."""
        if not self._setting.by_deadline:
            return max(reversed(batch.requests), key=_due)
        return max(reversed(batch.requests), key=_class_and_due)

    def room(self, batch: RunningBatch, now: float) -> StepRoom:
        """What the next step has for prompts."""
        decodes = batch.decodes
        most = self._setting.max_step_tokens - decodes.number
        if not decodes.number:
            self._pacer.forget(now)
        if not (self._setting.has_short_steps and decodes.number and (batch.prefilling or self.waiting)):
            return StepRoom(self._learned.times, most)
        objectives = [request.tpot_s for request in batch.requests if request.phase is Phase.DECODING]
        num_wanted = sum(request.num_to_prefill - request.num_computed for request in batch.prefilling)
        num_wanted += sum(request.num_prompt for request in self.waiting[:1])
        first = next(iter(self.in_order(batch.prefilling)), None)
        wanted = Wanted(num_wanted, first.num_computed if first else 0)
        return self._pacer.room(self._learned, decodes.number, decodes.context_tokens, objectives, wanted, most, now)

    def observe(self, sample: StepSample, num_steps: int) -> None:
        """So many steps like this one have run."""
        if self._setting.has_short_steps:
            self._learned.observe(sample)
        self._pacer.ran(num_steps)


def _class_and_due(request: EngineRequest) -> tuple[int, float]:
    return request.rank, request.due_at


def _due(request: EngineRequest) -> float:
    return request.due_at
