"""WorkerModel: the step times of one worker, which are those of its kind of engine times the worker's own pace. Pure.

Engines of a kind take the same time for the same work, but a worker may be slower than the others of its kind: its
device is hot, or something else takes a part of the machine. The latency model of the kind learns from the steps of all
workers as if they all had the usual pace. The pace of a worker is the mean ratio of its own steps to what that model
predicted for them.
"""

from math import exp, log
from typing import Final, final

from cluster.messages.reports import StepSample
from router.prediction.decaying import moving_mean
from router.prediction.learned_latency import LatencyModel
from router.prediction.step_model import StepModel

PACE_SHARE: Final = 0.02
"""Weight of the newest step in the mean. Higher takes the noise of single steps for a pace; lower learns late that a
worker has become slow.
"""
LEAST_DIFFERENCE: Final = 0.05
"""Difference of a pace from 1 up to which the worker counts as a usual one. Higher takes slow workers for usual ones;
lower takes noise for a pace, and has placement compute each prompt for each worker anew.
"""
MOST_RATIO: Final = 4.0
"""Largest ratio of a step's time to the prediction that counts, and its inverse the smallest. Higher lets one stalled
step move the pace; lower takes very slow workers for less slow ones.
"""


@final
class WorkerModel:
    __slots__ = ("_log_pace", "_scaled", "_scaled_from", "kind", "pace")

    def __init__(self, kind: LatencyModel) -> None:
        self.kind = kind
        """The model of all workers of this kind."""
        self.pace = 1.0
        """Time of a step of this worker as a multiple of the kind's, where the two differ enough."""
        self._log_pace = 0.0
        self._scaled_from: StepModel | None = None
        """The times of the kind that `_scaled` is made of."""
        self._scaled = kind.times

    @property
    def times(self) -> StepModel:
        """The very model of the kind where the worker has the usual pace."""
        times = self.kind.times
        if self.pace == 1.0:
            return times
        if times is not self._scaled_from:
            self._scaled_from, self._scaled = times, times.scaled(self.pace)
        return self._scaled

    def observe(self, sample: StepSample) -> None:
        """Learn from a step that the worker has run."""
        expected_s = self.kind.expected_s(sample)
        if expected_s is not None:
            ratio = min(max(sample.seconds / expected_s, 1.0 / MOST_RATIO), MOST_RATIO)
            self._log_pace = moving_mean(self._log_pace, log(ratio), PACE_SHARE)
            pace = exp(self._log_pace)
            self.pace = 1.0 if abs(pace - 1.0) < LEAST_DIFFERENCE else pace
            self._scaled_from = None
        self.kind.observe(sample, self.pace)
