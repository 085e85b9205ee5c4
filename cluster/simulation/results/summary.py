"""What a simulated run comes to: the figures, a table of runs for people. Pure.

The first tenth of the requests finds an empty cluster and is left out. Attainment counts all the others that were
offered: one that was rejected or failed has missed its objectives. TTFT and TPOT are those of the requests that had
any. Hit tokens are counted over requests that were placed.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median

import msgspec

from cluster.messages.ids import Outcome
from cluster.simulation.traffic.workload import RequestRecord

WARM_UP = 0.1
"""Share of the requests that is left out, by arrival."""
NO_PATH = "-"


class Quantiles(msgspec.Struct, frozen=True):
    """Of seconds."""

    p50: float
    p90: float
    p99: float


class PredictionError(msgspec.Struct, frozen=True, kw_only=True):
    """Of finished requests: |predicted - actual| / actual."""

    mean: float
    p50: float
    p90: float
    bias: float
    """Median of predicted / actual: below 1, predictions are too hopeful."""


class RetryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the Retry-After that clients got was right."""

    num_told: int
    """Requests whose last word was a rejection with a Retry-After."""
    told_p50_s: float
    num_retried: int
    """That came again as told."""
    first_retry_share: float
    """Of those, that were taken at the first retry."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Shares are in [0, 1]."""

    num_requests: int
    """Without those left out."""
    offered_per_s: float
    goodput_per_s: float
    """Requests that met both objectives."""
    good_tokens_per_s: float
    """Output tokens of those."""
    attainment: float
    accepted: float
    """Share that was not rejected."""
    accepted_attainment: float
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    by_path: dict[str, float]
    """Share of each path among all."""
    hit_rate: float
    """Prompt tokens found in caches."""
    ttft_error: PredictionError | None
    """None: nothing was predicted."""
    tpot_error: PredictionError | None
    by_tenant: dict[str, float]
    """Attainment."""
    by_class: dict[str, float]
    """Attainment."""
    fairness: float
    """Jain's index of the tenants' attainment: 1 when all have the same."""
    by_prompt_length: tuple[float, ...]
    """Attainment of each quarter, from the shortest prompts to the longest."""
    retries: RetryFigures


def measured(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Those that count, in order of arrival."""
    ordered = sorted(records, key=lambda record: record.arrival_s)
    return ordered[round(WARM_UP * len(ordered)) :]


def summary(records: Iterable[RequestRecord]) -> RunSummary:
    counted = measured(records)
    if not counted:
        raise ValueError("a run without requests has no figures")
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
        retries=_retries(counted),
    )


def quantile(ordered: Sequence[float], probability: float) -> float:
    """Of values in ascending order."""
    return ordered[min(len(ordered) - 1, int(probability * len(ordered)))]


def quantiles(values: Iterable[float]) -> Quantiles | None:
    ordered = sorted(values)
    return Quantiles(*(quantile(ordered, p) for p in (0.5, 0.9, 0.99))) if ordered else None


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first to the left, the others, which are figures, to the right."""
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
"""Heading and cell. The last two are the median errors of prediction."""


def table(runs: Sequence[tuple[str, RunSummary]]) -> str:
    """A line per run."""
    heading = ["policy", *(name for name, _ in COLUMNS)]
    return aligned([heading, *([name, *(cell(run) for _, cell in COLUMNS)] for name, run in runs)])


def who_attained(runs: Sequence[tuple[str, RunSummary]]) -> str:
    """A line per run: attainment by prompt length, by class and tenant where there are several, and how fair that is;
    what came of the refusals, where there were any.
    """
    quarters = ("shortest", "2nd", "3rd", "longest")
    classes = sorted({name for _, run in runs for name in run.by_class})
    tenants = sorted({name for _, run in runs for name in run.by_tenant})
    has_told = any(run.retries.num_told or run.retries.num_retried for _, run in runs)
    classes, tenants = (names if len(names) > 1 else [] for names in (classes, tenants))
    heading = ["attained by", *quarters, *classes, *(f"{name}:" for name in tenants)]
    heading += ["fairness"] if tenants else []
    heading += ["Retry-After", "right at once"] if has_told else []
    rows = [heading]
    for label, run in runs:
        shares = [*run.by_prompt_length, *(run.by_class.get(name, 0.0) for name in classes)]
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
