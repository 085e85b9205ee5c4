"""The figures of a simulated run, and tables that compare runs. Pure.

The first tenth of the requests finds an empty cluster and is left out of all figures. Attainment is over all remaining
requests: a request that was rejected or failed has missed its objectives. TTFT is over the requests that got a token,
and TPOT over those that got two. The hit rate is over the requests that were placed.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median

import msgspec

from cluster.messages.ids import Outcome
from cluster.simulation.traffic.workload import RequestRecord

WARM_UP = 0.1
"""Share of the requests, first in order of arrival, that is left out of all figures. Lower counts requests that found a
cluster without load; higher leaves fewer requests to measure.
"""
NO_PATH = "-"
"""Key of the requests that were never placed in `RunSummary.by_path`."""


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles of a duration, in seconds."""

    p50: float
    p90: float
    p99: float


class PredictionError(msgspec.Struct, frozen=True, kw_only=True):
    """Relative error |predicted - actual| / actual over finished requests with a prediction."""

    mean: float
    p50: float
    p90: float
    bias: float
    """Median of predicted / actual. Below 1, predictions are too short."""


class RetryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the retry slots that rejections gave to clients were right."""

    num_told: int
    """Requests whose last try ended with a rejection with a Retry-After."""
    told_p50_s: float
    """Median Retry-After of those rejections, in seconds. 0 if there were none."""
    num_retried: int
    """Requests that were sent again after a Retry-After."""
    first_retry_share: float
    """Share of the retried requests that were admitted at their first retry."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Shares are in [0, 1]."""

    num_requests: int
    """Measured requests: all but the first tenth."""
    offered_per_s: float
    """Measured requests per second, over the time between the first and the last of their arrivals."""
    goodput_per_s: float
    """Requests per second that met both objectives."""
    good_tokens_per_s: float
    """Output tokens per second of the requests that met both objectives."""
    attainment: float
    """Share of the measured requests that met both objectives."""
    token_attainment: float
    """Share of the tokens, of prompts and answers, that belong to requests that met both objectives. Lower than
    `attainment` where a policy refuses long prompts.
    """
    accepted: float
    """Share of the measured requests that were not rejected."""
    accepted_attainment: float
    """Share of the accepted requests that met both objectives."""
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    by_path: dict[str, float]
    """Share of the measured requests by path. The key of requests that were never placed is NO_PATH."""
    hit_rate: float
    """Share of the prompt tokens of placed requests that were found in caches."""
    ttft_error: PredictionError | None
    """Error of predicted TTFT. None if the policy predicts nothing."""
    tpot_error: PredictionError | None
    """Error of predicted TPOT. None if the policy predicts nothing."""
    by_tenant: dict[str, float]
    """Attainment by tenant."""
    by_class: dict[str, float]
    """Attainment by SLO class."""
    fairness: float
    """Jain's index of the tenants' attainment. 1 if all tenants have the same attainment."""
    by_prompt_length: tuple[float, ...]
    """Attainment of each quarter of the requests, from the shortest prompts to the longest."""
    longest_tenth: float
    """Attainment of the tenth of the requests with the longest prompts."""
    retries: RetryFigures


def measured(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The records after the warm-up, in order of arrival."""
    ordered = sorted(records, key=lambda record: record.arrival_s)
    return ordered[round(WARM_UP * len(ordered)) :]


def summary(records: Iterable[RequestRecord]) -> RunSummary:
    counted = measured(records)
    if not counted:
        raise ValueError("cannot summarize a run without requests")
    good = [record for record in counted if record.is_good]
    accepted = [record for record in counted if record.outcome is not Outcome.REJECTED]
    placed = [record for record in counted if record.path is not None]
    duration_s = counted[-1].arrival_s - counted[0].arrival_s or 1.0
    by_tenant = _attainments(counted, lambda record: record.tenant)
    return RunSummary(
        num_requests=len(counted),
        offered_per_s=len(counted) / duration_s,
        goodput_per_s=len(good) / duration_s,
        good_tokens_per_s=sum(record.num_output for record in good) / duration_s,
        attainment=len(good) / len(counted),
        token_attainment=sum(map(_num_tokens, good)) / max(1, sum(map(_num_tokens, counted))),
        accepted=len(accepted) / len(counted),
        accepted_attainment=len(good) / len(accepted) if accepted else 0.0,
        ttft_s=quantiles([record.ttft_s for record in counted if record.ttft_s is not None]),
        tpot_s=quantiles([record.tpot_s for record in counted if record.tpot_s is not None]),
        by_path=_shares(record.path.value if record.path else NO_PATH for record in counted),
        hit_rate=sum(record.num_hit_tokens for record in placed) / max(1, sum(record.num_prompt for record in placed)),
        ttft_error=_error([(r.predicted_ttft_s, r.ttft_s) for r in counted if r.outcome is Outcome.FINISHED]),
        tpot_error=_error([(r.predicted_tpot_s, r.tpot_s) for r in counted if r.outcome is Outcome.FINISHED]),
        by_tenant=by_tenant,
        by_class=_attainments(counted, lambda record: record.slo_class.value),
        fairness=_jain(list(by_tenant.values())),
        by_prompt_length=_by_prompt_length(counted),
        longest_tenth=_longest_tenth(counted),
        retries=_retries(counted),
    )


def quantile(ordered: Sequence[float], probability: float) -> float:
    """The value at a probability, of values in ascending order."""
    return ordered[min(len(ordered) - 1, int(probability * len(ordered)))]


def quantiles(values: Iterable[float]) -> Quantiles | None:
    ordered = sorted(values)
    return Quantiles(*(quantile(ordered, p) for p in (0.5, 0.9, 0.99))) if ordered else None


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Format the rows as columns of equal width. The first column is aligned left, and the figures after it right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


COLUMNS: tuple[tuple[str, Callable[[RunSummary], str]], ...] = (
    ("req/s", lambda s: f"{s.offered_per_s:.2f}"),
    ("good/s", lambda s: f"{s.goodput_per_s:.2f}"),
    ("attained", lambda s: _percent(s.attainment)),
    ("tokens", lambda s: _percent(s.token_attainment)),
    ("accepted", lambda s: _percent(s.accepted)),
    ("TTFT p50", lambda s: f"{s.ttft_s.p50:.2f}" if s.ttft_s else "-"),
    ("p90", lambda s: f"{s.ttft_s.p90:.2f}" if s.ttft_s else "-"),
    ("p99 s", lambda s: f"{s.ttft_s.p99:.2f}" if s.ttft_s else "-"),
    ("TPOT p50", lambda s: f"{1e3 * s.tpot_s.p50:.1f}" if s.tpot_s else "-"),
    ("p90", lambda s: f"{1e3 * s.tpot_s.p90:.1f}" if s.tpot_s else "-"),
    ("p99 ms", lambda s: f"{1e3 * s.tpot_s.p99:.1f}" if s.tpot_s else "-"),
    ("hits", lambda s: _percent(s.hit_rate)),
    ("P->D/D/P", lambda s: "/".join(f"{100 * s.by_path.get(path, 0.0):.0f}" for path in ("P->D", "D", "P"))),
    ("off TTFT", lambda s: _percent(s.ttft_error.p50) if s.ttft_error else "-"),
    ("off TPOT", lambda s: _percent(s.tpot_error.p50) if s.tpot_error else "-"),
)
"""Heading and cell of each column. The last two columns are the median errors of the predictions."""


def table(runs: Sequence[tuple[str, RunSummary]]) -> str:
    """A table with one line per run, from labels and summaries."""
    heading = ["policy", *(name for name, _ in COLUMNS)]
    return aligned([heading, *([name, *(cell(run) for _, cell in COLUMNS)] for name, run in runs)])


def who_attained(runs: Sequence[tuple[str, RunSummary]]) -> str:
    """A table with one line per run: attainment by prompt length, and by class and tenant where there are several.

    The table also has the fairness between several tenants, and the Retry-After figures where requests were refused.
    """
    quarters = ("shortest", "2nd", "3rd", "longest", "longest 10%")
    classes = sorted({name for _, run in runs for name in run.by_class})
    tenants = sorted({name for _, run in runs for name in run.by_tenant})
    has_told = any(run.retries.num_told or run.retries.num_retried for _, run in runs)
    classes, tenants = (names if len(names) > 1 else [] for names in (classes, tenants))
    heading = ["attained by", *quarters, *classes, *(f"{name}:" for name in tenants)]
    heading += ["fairness"] if tenants else []
    heading += ["Retry-After", "right at once"] if has_told else []
    rows = [heading]
    for label, run in runs:
        shares = [*run.by_prompt_length, run.longest_tenth, *(run.by_class.get(name, 0.0) for name in classes)]
        row = [label, *map(_percent, [*shares, *(run.by_tenant.get(name, 0.0) for name in tenants)])]
        row += [f"{run.fairness:.2f}"] if tenants else []
        if has_told:
            row.append(f"{run.retries.told_p50_s:.0f} s" if run.retries.num_told else "-")
            row.append(_percent(run.retries.first_retry_share) if run.retries.num_retried else "-")
        rows.append(row)
    return aligned(rows)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _attainments(records: list[RequestRecord], key: Callable[[RequestRecord], str]) -> dict[str, float]:
    groups: dict[str, list[bool]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record.is_good)
    return {name: fmean(groups[name]) for name in sorted(groups)}


def _shares(names: Iterable[str]) -> dict[str, float]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    total = sum(counts.values())
    return {name: counts[name] / total for name in sorted(counts)}


def _jain(values: list[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _by_prompt_length(records: list[RequestRecord]) -> tuple[float, ...]:
    ordered = sorted(records, key=lambda record: record.num_prompt)
    bounds = [len(ordered) * quarter // 4 for quarter in range(5)]
    quarters = [ordered[start:end] for start, end in pairwise(bounds)]
    return tuple(fmean(record.is_good for record in quarter) for quarter in quarters if quarter)


def _longest_tenth(records: list[RequestRecord]) -> float:
    ordered = sorted(records, key=lambda record: record.num_prompt)
    return fmean(record.is_good for record in ordered[-max(1, len(ordered) // 10) :])


def _num_tokens(record: RequestRecord) -> int:
    return record.num_prompt + record.num_output


def _error(pairs: list[tuple[float | None, float | None]]) -> PredictionError | None:
    known = [(predicted, actual) for predicted, actual in pairs if predicted is not None and actual]
    if not known:
        return None
    errors = sorted(abs(predicted - actual) / actual for predicted, actual in known)
    return PredictionError(
        mean=fmean(errors),
        p50=quantile(errors, 0.5),
        p90=quantile(errors, 0.9),
        bias=median(predicted / actual for predicted, actual in known),
    )


def _retries(records: list[RequestRecord]) -> RetryFigures:
    told = [r.retry_after_s for r in records if r.outcome is Outcome.REJECTED and r.retry_after_s is not None]
    retried = [record for record in records if record.num_tries > 1]
    at_once = [record for record in retried if record.num_tries == 2 and record.outcome is not Outcome.REJECTED]
    return RetryFigures(
        num_told=len(told),
        told_p50_s=median(told) if told else 0.0,
        num_retried=len(retried),
        first_retry_share=len(at_once) / len(retried) if retried else 0.0,
    )
