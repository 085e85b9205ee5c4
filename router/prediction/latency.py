"""What work takes on engines that are known only by their reports: learned online, from a prior. Pure.

One `LatencyModel` per kind of engine (`EngineShape.kind`: engines of a kind take the same time for the same work). It
is a `StepModel` whose coefficients follow the steps that engines report, prefill, decode and mixed ones alike: they
share the coefficients, so each step teaches about the others. The prior is the roofline of the kind's model and device
where there are figures for them, else a neutral one. The first samples set its level, by the median of what they took
to what it says, and then coefficients are learned as multiples of the prior's
(router/prediction/recursive_least_squares.py). None is ever negative: predictions are finite, positive and grow with
the work, whatever has been observed.
"""

from statistics import median
from typing import Final, final

import msgspec

from cluster.messages.ids import WorkerId
from cluster.messages.reports import StepSample
from cluster.messages.transport import LinkSpeed
from router.prediction import hardware as catalogue
from router.prediction.decaying import ERROR_SHARE, moving_mean
from router.prediction.path_bias import PathBias
from router.prediction.recursive_least_squares import RecursiveLeastSquares
from router.prediction.step_model import StepModel
from router.prediction.transfer import TransferModel, TransferModels

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
"""Of an engine that nothing is known about: something of every term, to be learned."""

STEP_S = (1e-6, 600.0)
"""A shorter sample is no step, a longer one a stall."""
_RELATIVE_ABOVE_S: Final = 2e-3
"""Errors in steps shorter than this count as shares of it."""
_NUM_FIRST: Final = 5


class Doubt(msgspec.Struct, frozen=True):
    """How far off a prior may be when its level is right, as shares: each coefficient alone, and all of them."""

    own: float
    common: float


_ROOFLINE_DOUBT = Doubt(own=0.3, common=0.3)
_NEUTRAL_DOUBT = Doubt(own=2.0, common=1.0)


class StepErrors(msgspec.Struct, frozen=True):
    """Moving averages of the relative error of predictions, each made before its step was learned from."""

    prefill: float | None = None
    """Of steps that computed prompt tokens. None: no such step yet."""
    decode: float | None = None


@final
class LatencyModel:
    """Of one kind of engine."""

    __slots__ = ("_decode_error", "_doubt", "_estimate", "_first", "_prefill_error", "_prior", "_scales", "times")

    times: StepModel
    """As learned so far."""

    def __init__(self, prior: StepModel | None) -> None:
        """None: nothing is known about the kind."""
        self._doubt = _ROOFLINE_DOUBT if prior else _NEUTRAL_DOUBT
        self._prior = self.times = prior or NEUTRAL
        self._scales = _scales(self._prior)
        self._first: list[StepSample] | None = []
        self._estimate = self._estimate_at(1.0)
        self._prefill_error: float | None = None
        self._decode_error: float | None = None

    def observe(self, sample: StepSample) -> None:
        """A step that an engine of this kind has run."""
        if not _has_meaning(sample):
            return
        self._note_error(sample)
        if self._first is None:
            self._learn(sample)
        else:
            self._first.append(sample)
            self._set_level(self._first)
        self._take_over()

    def errors(self) -> StepErrors:
        return StepErrors(self._prefill_error, self._decode_error)

    def _note_error(self, sample: StepSample) -> None:
        error = abs(self.times.step_s(*_work(sample)) - sample.seconds) / sample.seconds
        if sample.num_prefill:
            self._prefill_error = moving_mean(self._prefill_error, error, ERROR_SHARE)
        else:
            self._decode_error = moving_mean(self._decode_error, error, ERROR_SHARE)

    def _set_level(self, first: list[StepSample]) -> None:
        """Begin again: what the first samples have in common with the prior is its shape."""
        level = median(sample.seconds / self._prior.step_s(*_work(sample)) for sample in first)
        self._estimate = self._estimate_at(level)
        for sample in first:
            self._learn(sample)
        if len(first) == _NUM_FIRST:
            self._first = None

    def _estimate_at(self, level: float) -> RecursiveLeastSquares:
        """That starts from so many times the prior."""
        coefficients = [
            level * value / scale if scale else 0.0
            for value, scale in zip(_coefficients(self._prior), self._scales, strict=True)
        ]
        return RecursiveLeastSquares(coefficients, own_doubt=level * self._doubt.own, common_doubt=self._doubt.common)

    def _learn(self, sample: StepSample) -> None:
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
        self._estimate.update(features, sample.seconds, least=_RELATIVE_ABOVE_S)

    def _take_over(self) -> None:
        """The estimate's coefficients are those to predict with."""
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
    """Of all kinds of engines that have been heard of, of the links between them, and of what clients see of both."""

    def __init__(self) -> None:
        self._models: dict[str, LatencyModel] = {}
        self._transfers = TransferModels()
        self.bias = PathBias()

    def model(self, kind: str) -> LatencyModel:
        model = self._models.get(kind)
        if model is None:
            model = self._models[kind] = LatencyModel(catalogue.prior(kind))
        return model

    def transfer(self, prefill: WorkerId, decode: WorkerId, proved: LinkSpeed | None) -> TransferModel:
        """`proved`: the speed of the link between them, when it was measured."""
        return self._transfers.link(prefill, decode, proved)

    def forget(self, worker: WorkerId) -> None:
        """A worker that is gone has no links any more; its kind is remembered."""
        self._transfers.forget(worker)

    def errors(self) -> dict[str, StepErrors]:
        """By kind of engine."""
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
    """Units of the coefficients: the prior's own. What a token costs below the knee may be more than its nothing."""
    fixed_s, token_s, *others = _coefficients(prior)
    return fixed_s, max(token_s, 0.1 * prior.beyond_knee_s), *others
