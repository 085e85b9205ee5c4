"""How long engines take for their work, learned online from the steps that they report. Pure.

There is one `LatencyModel` for each kind of engine (`EngineShape.kind`: engines of a kind take the same time for the
same work). A latency model is a `StepModel` whose coefficients follow the reported steps. Prefill, decode and mixed
steps share the coefficients, so each step teaches about all kinds of steps.

1. The prior is the roofline of the kind's model and device. Without figures for both, the prior is NEUTRAL.
2. The first samples set the level of the prior: the median of measured time to predicted time.
3. Then the coefficients are learned as multiples of those of the prior (router/prediction/recursive_least_squares.py).

No coefficient is ever negative. So predictions are finite, positive and grow with the work, whatever was observed.
"""

from statistics import median
from typing import Final, final

import msgspec

from cluster.messages.ids import WorkerId
from cluster.messages.reports import StepSample
from router.prediction.decaying import ERROR_SHARE, moving_mean, moving_median
from router.prediction.hardware import prior
from router.prediction.path_bias import PathBias
from router.prediction.recursive_least_squares import RecursiveLeastSquares
from router.prediction.step_chunk import StepBound
from router.prediction.step_model import StepModel
from router.prediction.transfer import TransferModels

NEUTRAL = StepModel(
    fixed_s=10e-3,
    token_s=50e-6,
    knee_tokens=256,
    beyond_knee_s=50e-6,
    attended_s=3e-9,
    request_s=50e-6,
    context_s=1e-7,
    experts_s=5e-3,
    unrouted=0.94,
)
"""Prior of an engine without figures. Each term is above zero, so that it can be learned. That of reading experts is,
too, so the first steps of such an engine are those of a mixture of experts (`long_steps`), until it knows better.
"""

STEP_S = (1e-6, 600.0)
"""Bounds of a sample, in seconds. A shorter sample is no step and a longer one is a stall; both are ignored. Wider
bounds learn from measurements without meaning; narrower ones ignore steps.
"""
_RELATIVE_ABOVE_S: Final = 2e-3
"""Length of a step, in seconds, below which errors count as shares of this constant. Higher takes errors of short steps
for small; lower lets noise of short steps move the coefficients.
"""
_NUM_FIRST: Final = 5
"""Samples that set the level of the prior. More keeps a wrong level longer; fewer takes noise for the level."""

USUAL_PACE_SHARE: Final = 1e-3
"""Share by which one step moves the usual pace, at most. Higher takes a slow worker that runs many steps for a usual
one; lower learns late that all workers have become slower.
"""


class Doubt(msgspec.Struct, frozen=True):
    """Expected errors of a prior after its level is set, as shares: of each coefficient alone, and of all together."""

    own: float
    common: float


_ROOFLINE_DOUBT = Doubt(own=0.3, common=0.3)
_NEUTRAL_DOUBT = Doubt(own=2.0, common=1.0)


class StepErrors(msgspec.Struct, frozen=True):
    """Moving means of the relative errors of predictions. Each step was predicted before it was learned from."""

    prefill: float | None = None
    """Error for steps that computed prompt tokens. None before the first such step."""
    decode: float | None = None
    """Error for all other steps. None before the first such step."""


@final
class LatencyModel:
    """The times of one kind of engine."""

    __slots__ = (
        "_decode_error",
        "_doubt",
        "_estimate",
        "_first",
        "_prefill_error",
        "_prior",
        "_scales",
        "_usual_pace",
        "bound",
        "times",
    )

    times: StepModel
    """The step model with the coefficients as learned so far."""

    def __init__(self, prior: StepModel | None) -> None:
        """`prior`: None for a kind without figures."""
        self._doubt = _ROOFLINE_DOUBT if prior else _NEUTRAL_DOUBT
        self._prior = self.times = prior or NEUTRAL
        self._scales = _scales(self._prior)
        self._first: list[StepSample] | None = []
        self._estimate = self._estimate_at(1.0)
        self._prefill_error: float | None = None
        self._decode_error: float | None = None
        self._usual_pace: float | None = None
        """The median pace of the workers, by steps. None before the first step."""
        self.bound = StepBound()
        """How long the engines make their steps with prompts."""

    def expected_s(self, sample: StepSample) -> float | None:
        """What the step should have taken, in seconds. None for a sample without a meaning, and while the level of the
        times is not known.
        """
        if self._first is not None or not _has_meaning(sample):
            return None
        return self.times.step_s(*_work(sample))

    def observe(self, sample: StepSample, pace: float = 1.0) -> None:
        """Learn from a step that an engine of this kind has run. `pace`: time of that engine's steps, as a multiple of
        what this model predicts, which is known and no error.

        A slow worker gets other work than the others do. So its steps are learned from as if they had the usual pace:
        otherwise its slowness would count as the price of the work that it gets, on all workers.
        """
        if not _has_meaning(sample):
            return
        self._note_error(sample, pace)
        self._usual_pace = moving_median(self._usual_pace, pace, USUAL_PACE_SHARE)
        if self._first is None:
            self._learn(sample, sample.seconds * self._usual_pace / pace)
        else:
            self._first.append(sample)
            self._set_level(self._first)
        self._take_over()

    def errors(self) -> StepErrors:
        return StepErrors(self._prefill_error, self._decode_error)

    def _note_error(self, sample: StepSample, pace: float) -> None:
        error = abs(pace * self.times.step_s(*_work(sample)) - sample.seconds) / sample.seconds
        if sample.num_prefill:
            self._prefill_error = moving_mean(self._prefill_error, error, ERROR_SHARE)
            self.bound = StepBound(self._prefill_error)
        else:
            self._decode_error = moving_mean(self._decode_error, error, ERROR_SHARE)

    def _set_level(self, first: list[StepSample]) -> None:
        """Begin again at the level of the first samples: they have the shape of the prior, but not its level."""
        level = median(sample.seconds / self._prior.step_s(*_work(sample)) for sample in first)
        self._estimate = self._estimate_at(level)
        for sample in first:
            self._learn(sample, sample.seconds)
        if len(first) == _NUM_FIRST:
            self._first = None

    def _estimate_at(self, level: float) -> RecursiveLeastSquares:
        """An estimate that starts from the prior, multiplied by `level`."""
        coefficients = [
            level * value / scale if scale else 0.0
            for value, scale in zip(_coefficients(self._prior), self._scales, strict=True)
        ]
        return RecursiveLeastSquares(coefficients, own_doubt=level * self._doubt.own, common_doubt=self._doubt.common)

    def _learn(self, sample: StepSample, seconds: float) -> None:
        tokens = sample.num_prefill + sample.num_decoding
        counts = (
            1,
            tokens,
            max(0, tokens - self._prior.knee_tokens),
            sample.attended,
            sample.num_decoding,
            sample.context_tokens,
            1 - self._prior.unrouted**tokens,
        )
        features = [count * scale for count, scale in zip(counts, self._scales, strict=True)]
        self._estimate.update(features, seconds, least=_RELATIVE_ABOVE_S)

    def _take_over(self) -> None:
        """Predict with the coefficients of the estimate."""
        fixed_s, token_s, beyond_knee_s, attended_s, request_s, context_s, experts_s = [
            c * scale for c, scale in zip(self._estimate.coefficients, self._scales, strict=True)
        ]
        self.times = StepModel(
            fixed_s=max(fixed_s, STEP_S[0]),
            token_s=token_s,
            knee_tokens=self._prior.knee_tokens,
            beyond_knee_s=beyond_knee_s,
            attended_s=attended_s,
            request_s=request_s,
            context_s=context_s,
            experts_s=experts_s,
            unrouted=self._prior.unrouted,
        )


@final
class LatencyModels:
    """What is learned: times of all kinds of engines, speeds of links, and what predictions of clients' times lack."""

    def __init__(self) -> None:
        self._models: dict[str, LatencyModel] = {}
        self.transfers = TransferModels()
        self.bias = PathBias()

    def model(self, kind: str) -> LatencyModel:
        model = self._models.get(kind)
        if model is None:
            model = self._models[kind] = LatencyModel(prior(kind))
        return model

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone. Its links are forgotten; the times of its kind are kept."""
        self.transfers.forget(worker)

    def errors(self) -> dict[str, StepErrors]:
        """Errors by kind of engine."""
        return {kind: model.errors() for kind, model in self._models.items()}


def _work(sample: StepSample) -> tuple[int, int, int, int]:
    return sample.num_prefill, sample.attended, sample.num_decoding, sample.context_tokens


def _has_meaning(sample: StepSample) -> bool:
    has_work = min(_work(sample)) >= 0 and sample.num_prefill + sample.num_decoding > 0
    return has_work and STEP_S[0] <= sample.seconds <= STEP_S[1]


def _coefficients(times: StepModel) -> tuple[float, ...]:
    return (
        times.fixed_s,
        times.token_s,
        times.beyond_knee_s,
        times.attended_s,
        times.request_s,
        times.context_s,
        times.experts_s,
    )


def _scales(prior: StepModel) -> tuple[float, ...]:
    """Units of the coefficients: the coefficients of the prior. Where a token below the knee is free in the prior, the
    unit of its cost is above zero nevertheless, so that the cost can be learned.
    """
    fixed_s, token_s, *others = _coefficients(prior)
    return fixed_s, max(token_s, 0.1 * prior.beyond_knee_s), *others
