"""The figures of a load, from the records of its requests. Pure.

The first requests find an endpoint without load, so that a share of them is left out of all figures. A request that was
refused, failed or timed out has missed its objectives: attainment is over all requests that were due. Requests that the
user has stopped do not count.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

import msgspec

from cluster.load.record import GeneratorFigures, LoadEnding, LoadRecord
from cluster.load.report.intervals import Estimate, quantile_estimates, share
from cluster.messages.ids import SloClass
from cluster.messages.placement import Slo
from cluster.simulation.results.summary import quantile

PROBABILITIES = (0.5, 0.9, 0.95, 0.99)
MOST_ERRORS = 12
"""Different errors that a report shows. More make reports of broken endpoints longer; fewer hide some."""

Slos = Mapping[SloClass, Slo]


class Latency(msgspec.Struct, frozen=True):
    """Quantiles of a duration, in seconds."""

    p50: Estimate
    p90: Estimate
    p95: Estimate
    p99: Estimate
    mean: float
    max: float


class Gaps(msgspec.Struct, frozen=True):
    """Quantiles of the times between tokens of all requests, in seconds."""

    p50: float
    p90: float
    p99: float
    max: float


class ErrorCount(msgspec.Struct, frozen=True):
    ending: LoadEnding
    status: int
    example: str
    number: int


class Lag(msgspec.Struct, frozen=True):
    """How late requests were sent, in seconds."""

    p50_s: float
    p99_s: float
    max_s: float


class LoadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one load. Shares are in [0, 1], and rates per second."""

    rate_asked: float | None
    """None for a closed loop."""
    num_requests: int
    """Requests that count."""
    num_warm_up: int
    num_stopped: int
    window_s: float
    """Time in which the counted requests were due (open loop), or were served (closed loop)."""
    served_s: float
    """Time from when the first counted request was due to the end of the last one, and at least `window_s`. All rates
    of what was served are over this time.
    """
    drain_s: float
    """Time from when the last counted request was due to the end of the last one."""
    offered_per_s: float
    """Requests that were due per second."""
    endings: dict[LoadEnding, int]
    finished_share: Estimate
    refused_share: Estimate
    failed_share: Estimate
    """Share of the requests that neither finished nor were refused."""
    attainment: Estimate
    """Share of the requests that finished within both objectives."""
    attainment_by_class: dict[SloClass, float]
    goodput_per_s: Estimate
    """Requests that finished within both objectives, per second of the time in which they were served."""
    finished_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    ttft_s: Latency | None
    tpot_s: Latency | None
    e2e_s: Latency | None
    """Of the requests that finished."""
    itl_s: Gaps | None
    mean_prompt: float
    mean_output: float
    """Tokens of the finished requests, as `usage` counts them."""
    cached_share: float | None
    """Share of the prompt tokens that were found in caches. None if the endpoint does not tell."""
    prompt_error: float | None
    """Median of |counted - planned| / planned of the prompts' tokens. None if the endpoint counts none."""
    num_uncounted: int
    """Finished requests whose tokens the endpoint has not counted."""
    num_short: int
    """Finished requests with fewer tokens than planned."""
    retry_after_p50_s: float | None
    """Median Retry-After of the refusals that have one."""
    num_retried: int
    errors: list[ErrorCount]
    lag: Lag
    generator: GeneratorFigures


def figures(
    records: Sequence[LoadRecord],
    slos: Slos,
    generator: GeneratorFigures,
    *,
    warm_up: float,
    rate: float | None,
) -> LoadFigures:
    """`warm_up`: share of the requests, first in order, that is left out. `rate`: None for a closed loop."""
    ordered = sorted((r for r in records if r.ending is not LoadEnding.STOPPED), key=lambda record: record.number)
    num_warm_up = round(warm_up * len(ordered))
    counted = ordered[num_warm_up:]
    finished = [record for record in counted if record.ending is LoadEnding.FINISHED]
    good = [record.is_good(slos[record.slo_class]) for record in counted]
    window_s = _window_s(counted, is_open=rate is not None)
    served_s = max(window_s, _served_s(counted))
    attainment = share(good)
    endings = [record.ending for record in counted]
    lags = sorted(record.late_s for record in counted) or [0.0]
    waits = [record.retry_after_s for record in counted if record.retry_after_s is not None]
    return LoadFigures(
        rate_asked=rate,
        num_requests=len(counted),
        num_warm_up=num_warm_up,
        num_stopped=len(records) - len(ordered),
        window_s=window_s,
        served_s=served_s,
        drain_s=max((r.ended_s for r in counted), default=0.0) - max((r.due_s for r in counted), default=0.0),
        offered_per_s=len(counted) / window_s,
        endings=dict(Counter(endings)),
        finished_share=share([ending is LoadEnding.FINISHED for ending in endings]),
        refused_share=share([ending is LoadEnding.REFUSED for ending in endings]),
        failed_share=share([ending not in (LoadEnding.FINISHED, LoadEnding.REFUSED) for ending in endings]),
        attainment=attainment,
        attainment_by_class=_by_class(counted, good),
        goodput_per_s=attainment.scaled(len(counted) / served_s),
        finished_per_s=len(finished) / served_s,
        output_tokens_per_s=sum(record.num_output or 0 for record in counted) / served_s,
        prompt_tokens_per_s=sum(record.num_prompt or 0 for record in counted) / served_s,
        ttft_s=_latency(counted, lambda record: record.ttft_s),
        tpot_s=_latency(counted, lambda record: record.tpot_s),
        e2e_s=_latency(finished, lambda record: record.e2e_s),
        itl_s=_gaps(counted),
        mean_prompt=_mean([record.num_prompt for record in finished]),
        mean_output=_mean([record.num_output for record in finished]),
        cached_share=_cached_share(finished),
        prompt_error=_prompt_error(finished),
        num_uncounted=sum(record.num_output is None for record in finished),
        num_short=sum(
            record.num_output is not None and record.num_output < record.planned_output for record in finished
        ),
        retry_after_p50_s=median(waits) if waits else None,
        num_retried=sum(record.num_tries > 1 for record in counted),
        errors=_errors(counted),
        lag=Lag(quantile(lags, 0.5), quantile(lags, 0.99), lags[-1]),
        generator=generator,
    )


def _window_s(records: Sequence[LoadRecord], *, is_open: bool) -> float:
    """In an open loop, the counted requests with the gap after the last of them."""
    if not records:
        return 1.0
    if not is_open:
        return _served_s(records)
    first, last = (pick(record.due_s for record in records) for pick in (min, max))
    return (last - first) * len(records) / max(1, len(records) - 1) or 1.0


def _served_s(records: Sequence[LoadRecord]) -> float:
    """From the first counted request to the end of the last one."""
    if not records:
        return 1.0
    return max(record.ended_s for record in records) - min(record.due_s for record in records) or 1.0


def _latency(records: Sequence[LoadRecord], value: Callable[[LoadRecord], float | None]) -> Latency | None:
    values = [found for record in records if (found := value(record)) is not None]
    if not values:
        return None
    p50, p90, p95, p99 = quantile_estimates(values, PROBABILITIES)
    return Latency(p50, p90, p95, p99, fmean(values), max(values))


def _gaps(records: Sequence[LoadRecord]) -> Gaps | None:
    gaps = sorted(gap for record in records for gap in record.gaps_s)
    return Gaps(quantile(gaps, 0.5), quantile(gaps, 0.9), quantile(gaps, 0.99), gaps[-1]) if gaps else None


def _by_class(records: Sequence[LoadRecord], good: Sequence[bool]) -> dict[SloClass, float]:
    groups: dict[SloClass, list[bool]] = {}
    for record, is_good in zip(records, good, strict=True):
        groups.setdefault(record.slo_class, []).append(is_good)
    return {slo_class: fmean(groups[slo_class]) for slo_class in SloClass if slo_class in groups}


def _mean(values: Sequence[int | None]) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else 0.0


def _cached_share(records: Sequence[LoadRecord]) -> float | None:
    told = [record for record in records if record.num_cached is not None]
    if not told:
        return None
    return sum(record.num_cached or 0 for record in told) / max(1, sum(record.num_prompt or 0 for record in told))


def _prompt_error(records: Sequence[LoadRecord]) -> float | None:
    errors = [
        abs(record.num_prompt - record.planned_prompt) / record.planned_prompt
        for record in records
        if record.num_prompt is not None
    ]
    return median(errors) if errors else None


def _errors(records: Sequence[LoadRecord]) -> list[ErrorCount]:
    """The most frequent kinds of errors, each with an example."""
    bad = [record for record in records if record.ending is not LoadEnding.FINISHED]
    counts = Counter((record.ending, record.status) for record in bad)
    examples = {(record.ending, record.status): record.error for record in reversed(bad)}
    return [ErrorCount(*kind, examples[kind], number) for kind, number in counts.most_common(MOST_ERRORS)]
