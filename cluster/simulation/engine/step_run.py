"""StepRun: the step of one simulated engine that is under way, or the run of steps that only decode. Pure.

A step with prompt chunks is planned alone. Steps that only decode are planned as one run, which ends early, with the
step under way, when something else is to be done.
"""

from math import inf

from cluster.messages.reports import StepSample
from cluster.simulation.engine.engine_request import EngineRequest, Phase
from cluster.simulation.engine.engine_setting import StepTimes
from cluster.simulation.engine.running_batch import RunningBatch

MAX_SAMPLES = 8
"""Step samples that are kept between two reports. Fewer makes the Scheduler learn more slowly; more costs memory and
time of the simulator.
"""


class StepRun:
    __slots__ = ("_batch", "_began_at", "_model", "_samples", "ends_at", "number")

    def __init__(self, batch: RunningBatch, model: StepTimes) -> None:
        self._batch = batch
        self._model = model
        self._began_at = 0.0
        self.ends_at = inf
        """inf if the engine is idle."""
        self.number = 0
        """Steps of the run. 0 if the engine is idle until `ends_at`, and then looks for work."""
        self._samples: list[StepSample] = []

    def plan(self, now: float, available_tokens: int, *, has_preempted: bool, is_single: bool = False) -> None:
        """Begin the next step or run of steps. Each decoding request takes one of `available_tokens` per step after the
        first. `is_single`: the run ends after one step, because prompts wait for a long one.
        """
        self._began_at = now
        batch, decodes = self._batch, self._batch.decodes
        if batch.chunks:
            self.number = 1
            step_s = self._model.step_s(*batch.work_of_chunks(), decodes.number, decodes.context_tokens)
            self.ends_at = now + step_s
        elif decodes.number:
            steps = min(decodes.steps_until_end(), 1 + available_tokens // decodes.number)
            self.number = 1 if batch.firsts or is_single else steps
            self.ends_at = now + self._model.decode_run_s(decodes.number, decodes.context_tokens, self.number)
        else:  # if the last running request was preempted, another one may have a seat at once
            self.number, self.ends_at = 0, now if has_preempted else inf

    def done_by(self, now: float) -> int:
        """Whole steps of the run that are over."""
        if self.number <= 1:
            return 0
        decodes = self._batch.decodes
        done = self._model.decode_steps_within(decodes.number, decodes.context_tokens, now - self._began_at)
        return min(done, self.number - 1)

    def generated(self, request: EngineRequest, now: float) -> int:
        """Tokens that the request has been given."""
        if request.phase is not Phase.DECODING:
            return request.num_generated
        return request.num_generated + self._batch.decodes.steps - request.joined_at_step + self.done_by(now)

    def interrupt(self, now: float) -> None:
        """End the run with the step under way: something is to be done before the next one."""
        if self.ends_at == inf:
            self.ends_at, self.number = now, 0
        elif self.number > 1:
            steps = self.done_by(now) + 1
            if steps < self.number:
                self.number = steps
                decodes = self._batch.decodes
                run_s = self._model.decode_run_s(decodes.number, decodes.context_tokens, steps)
                self.ends_at = max(self._began_at + run_s, now)

    def note_sample(self) -> StepSample:
        """A sample of the run, which ends. It is kept unless there are enough."""
        new, attended = self._batch.work_of_chunks()
        decoding, context_tokens = self._batch.decodes.number, self._batch.decodes.context_tokens
        seconds = self.ends_at - self._began_at
        if self.number > 1:
            seconds = self._model.step_s(0, 0.0, decoding, context_tokens)
        sample = StepSample(new, int(attended), decoding, context_tokens, seconds)
        if len(self._samples) < MAX_SAMPLES:
            self._samples.append(sample)
        return sample

    def take_samples(self) -> list[StepSample]:
        """Some of the steps since the last call."""
        samples, self._samples = self._samples, []
        return samples
