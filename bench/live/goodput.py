"""What a request was to meet, whether it did, and how sure the shares are. Pure.

Intervals are by bootstrap over rounds and over the requests of each (Davison and Hinkley's two-stage resampling). Two
systems are compared request by request, because both were asked the same: what rounds and requests have in common does
not blur the difference.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bench.fronts.cost import percentile

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Slo:
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True)
class Answer:
    """What became of one request."""

    kind: str
    status: int
    """The HTTP status, or 0 if no whole answer came."""
    ttft_s: float | None
    tpot_s: float | None
    """None without a second token."""
    prompt_tokens: int
    tokens: int
    late_s: float
    """How much later than planned it was sent."""
    answer_id: str = ""
    error: str = ""
    spread: float = 0.0
    """Standard deviation of the times between its tokens, as a share of the usual one."""

    @property
    def is_refused(self) -> bool:
        return self.status in (429, 503)

    def is_good(self, slos: dict[str, Slo]) -> bool:
        """`slos`: by kind."""
        slo = slos[self.kind]
        return (
            self.ttft_s is not None and self.ttft_s <= slo.ttft_s and (self.tpot_s is None or self.tpot_s <= slo.tpot_s)
        )


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


def slos(alone: Sequence[Answer], ttft_factor: float, base_s: float, tpot_factor: float) -> dict[str, Slo]:
    """By kind, from what requests took alone on an idle engine: a kind's median TTFT so many times and a base, and so
    many times the median TPOT of all.
    """
    tpot_s = tpot_factor * median([answer.tpot_s for answer in alone if answer.tpot_s is not None])
    return {
        kind: Slo(base_s + ttft_factor * median([a.ttft_s for a in alone if a.kind == kind and a.ttft_s]), tpot_s)
        for kind in dict.fromkeys(answer.kind for answer in alone)
    }


def interval(rounds: Sequence[Sequence[float]], rng: random.Random) -> Interval:
    """The confidence interval of the mean over all requests of all rounds."""
    means = sorted(_resampled_mean(rounds, rng) for _ in range(RESAMPLES))
    tail = 100 * (1 - CONFIDENCE) / 2
    value = fmean(value for values in rounds for value in values)
    return Interval(value, percentile(means, tail), percentile(means, 100 - tail))


def difference(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], rng: random.Random) -> Interval:
    """The confidence interval of our mean less the mean of another system, over the same requests."""
    return interval([[a - b for a, b in zip(*pair, strict=True)] for pair in zip(ours, theirs, strict=True)], rng)


def median_difference(ours: Sequence[float], theirs: Sequence[float], rng: random.Random) -> Interval:
    """The confidence interval of our median less the median of another system, over pairs measured side by side."""
    pairs = list(zip(ours, theirs, strict=True))
    differences = sorted(_difference_of_medians(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = percentile(differences, tail), percentile(differences, 100 - tail)
    return Interval(_difference_of_medians(pairs), low, high)


def _difference_of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    return median(ours for ours, _ in pairs) - median(theirs for _, theirs in pairs)


def _resampled_mean(rounds: Sequence[Sequence[float]], rng: random.Random) -> float:
    total, count = 0.0, 0
    for values in rng.choices(rounds, k=len(rounds)):
        total += sum(rng.choices(values, k=len(values)))
        count += len(values)
    return total / count


@dataclass(frozen=True)
class PredictionError:
    """How wrong predictions were for requests that ran where they were first placed."""

    count: int
    p50: float
    """Median of |predicted - actual| / actual."""
    p90: float
    bias: float
    """Median of predicted / actual: below 1, predictions are too hopeful."""


def prediction_error(pairs: Sequence[tuple[float, float]]) -> PredictionError | None:
    """`pairs`: predicted and actual. None without any."""
    if not pairs:
        return None
    errors = [abs(predicted - actual) / actual for predicted, actual in pairs]
    bias = median(predicted / actual for predicted, actual in pairs)
    return PredictionError(len(pairs), median(errors), percentile(errors, 90), bias)
