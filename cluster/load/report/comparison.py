"""Two reports side by side: what changed, and how sure that is. Pure.

The interval of a change comes from those of both sides, which are independent: the half widths add as squares, of
logarithms for a ratio, and of shares for a difference of shares. Many figures are compared, of which one in twenty
would seem to change by chance. So each interval is widened until all together hold the truth in 95 of 100 comparisons
(Bonferroni).

Latencies are those of answers. A service that drops its slowest requests has better latencies, so they are judged only
where both have answered as many.
"""

from collections.abc import Callable
from math import exp, hypot, inf, log

import msgspec

from cluster.load.report.document import LoadReport
from cluster.load.report.figures import Latency, LoadFigures
from cluster.load.report.intervals import CONFIDENCE, Estimate
from cluster.simulation.results.summary import aligned

TAIL_SHARE = 0.5
"""Share of the requests beyond a quantile by which the answered shares may differ. At 0.5, p99 is judged if they differ
by at most half a point. Higher judges quantiles that dropped requests have moved; lower judges fewer.
"""
SHARES: dict[str, tuple[Callable[[LoadFigures], Estimate], bool]] = {
    "attained": (lambda run: run.attainment, True),
    "refused": (lambda run: run.refused_share, False),
    "failed": (lambda run: run.failed_share, False),
}
"""Shares that are compared, and whether more is better."""
LATENCIES: dict[str, Callable[[LoadFigures], Latency | None]] = {
    "TTFT": lambda run: run.ttft_s,
    "TPOT": lambda run: run.tpot_s,
    "E2E": lambda run: run.e2e_s,
}
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
NO_DIFFERENCE = "no difference that shows"


class FigureChange(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both reports."""

    name: str
    first: float
    second: float
    change: Estimate | None
    """Second over first, or second less first of shares. None for a ratio to 0."""
    is_ratio: bool
    is_better_high: bool
    not_judged: str = ""
    """Why there is no verdict."""

    @property
    def verdict(self) -> str:
        if self.not_judged or self.change is None:
            return self.not_judged or "no verdict: the first is 0"
        none = 1.0 if self.is_ratio else 0.0
        if self.change.low <= none <= self.change.upper:
            return NO_DIFFERENCE
        return "better" if (self.change.value > none) is self.is_better_high else "worse"


def changes(first: LoadFigures, second: LoadFigures) -> list[FigureChange]:
    """The figures that both runs have."""
    both = [(name, one, other) for name, of in LATENCIES.items() if (one := of(first)) and (other := of(second))]
    number = 1 + len(SHARES) + len(QUANTILES) * len(both)
    wider = widening(number)
    rows = [_ratio("good/s", first.goodput_per_s, second.goodput_per_s, wider, is_better_high=True)]
    rows += [
        _share(name, of(first), of(second), wider, is_better_high) for name, (of, is_better_high) in SHARES.items()
    ]
    for name, before, after in both:
        for field, probability in QUANTILES.items():
            row = _ratio(f"{name} {field} ms", _in_ms(before, field), _in_ms(after, field), wider, is_better_high=False)
            rows.append(msgspec.structs.replace(row, not_judged=_dropped(first, second, probability)))
    return rows


def widening(number: int) -> float:
    """Factor on the half widths of so many intervals. It is that of an exponential tail, which is longer than a normal
    one.
    """
    tail = (1 - CONFIDENCE) / 2
    return log(tail / number) / log(tail)


def comparison_text(first: LoadReport, second: LoadReport, names: tuple[str, str]) -> str:
    compared = changes(first.shown, second.shown)
    rows = [["", *names, "change", "95 %", ""], *map(_cells, compared)]
    further = [
        ("finished/s", first.shown.finished_per_s, second.shown.finished_per_s),
        ("output tokens/s", first.shown.output_tokens_per_s, second.shown.output_tokens_per_s),
    ]
    if first.highest_rate and second.highest_rate:
        further.append(("highest req/s", first.highest_rate.per_s, second.highest_rate.per_s))
    for name, one, other in further:
        rows.append([name, f"{one:.4g}", f"{other:.4g}", f"x {other / one:.3f}" if one else "-", "", ""])
    lines = [f"first: {_what(first)}", f"second: {_what(second)}", "", aligned(rows)]
    lines.append(
        f"Changes are from the first to the second. The {len(compared)} intervals hold the truth together with 95 %."
    )
    lines += [f"warning: {line}" for line in differences(first, second)]
    return "\n".join(lines)


def differences(first: LoadReport, second: LoadReport) -> list[str]:
    """What was not the same for both."""
    names = ("model", "api", "workload", "loop", "num_users", "seed", "warm_up", "slos", "num_cut", "max_retries")
    found = [
        f"{name} differs: {getattr(first.setup, name)} and {getattr(second.setup, name)}"
        for name in names
        if getattr(first.setup, name) != getattr(second.setup, name)
    ]
    one, other = first.shown.rate_asked, second.shown.rate_asked
    if one != other:
        found.append(f"the rates differ: {one} and {other} requests per second")
    return found


def _what(report: LoadReport) -> str:
    setup = report.setup
    return f"{setup.model} at {setup.url}, {setup.workload}, {report.started_at}"


def _cells(row: FigureChange) -> list[str]:
    shown = _factor if row.is_ratio else _points
    values = [f"{value:.4g}" if row.is_ratio else f"{value:.1%}" for value in (row.first, row.second)]
    if row.change is None:
        return [row.name, *values, "-", "-", row.verdict]
    high = "any" if row.change.high is None else shown(row.change.high)
    change = f"x {shown(row.change.value)}" if row.is_ratio else f"{shown(row.change.value)} points"
    return [row.name, *values, change, f"{shown(row.change.low)} to {high}", row.verdict]


def _factor(ratio: float) -> str:
    return f"{ratio:.3f}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _dropped(first: LoadFigures, second: LoadFigures, probability: float) -> str:
    """Why latencies at this quantile cannot be compared. Empty if they can."""
    one, other = first.finished_share, second.finished_share
    change = _difference(one, other, 1.0)
    may_differ = TAIL_SHARE * (1 - probability)
    if abs(change.value) <= may_differ and change.low <= 0 <= change.upper:
        return ""
    return f"no verdict: {one.value:.1%} and {other.value:.1%} were answered"


def _difference(first: Estimate, second: Estimate, wider: float) -> Estimate:
    """Of shares, as Newcombe has it."""
    value = second.value - first.value
    down = hypot(second.value - second.low, first.upper - first.value)
    up = hypot(second.upper - second.value, first.value - first.low)
    return Estimate(value, max(-1.0, value - wider * down), min(1.0, value + wider * up))


def _in_ms(latency: Latency, field: str) -> Estimate:
    estimate: Estimate = getattr(latency, field)
    return estimate.scaled(1e3)


def _share(name: str, first: Estimate, second: Estimate, wider: float, is_better_high: bool) -> FigureChange:
    return FigureChange(
        name=name,
        first=first.value,
        second=second.value,
        change=_difference(first, second, wider),
        is_ratio=False,
        is_better_high=is_better_high,
    )


def _ratio(name: str, first: Estimate, second: Estimate, wider: float, *, is_better_high: bool) -> FigureChange:
    ratio = None
    if first.value > 0 and second.value <= 0:
        ratio = Estimate(0.0, 0.0, wider * second.upper / first.low if first.low > 0 else None)
    elif first.value > 0:
        value = second.value / first.value
        down = wider * hypot(_below(second), _above(first))
        up = wider * hypot(_above(second), _below(first))
        ratio = Estimate(value, value * exp(-down), value * exp(up) if up < inf else None)
    return FigureChange(
        name=name,
        first=first.value,
        second=second.value,
        change=ratio,
        is_ratio=True,
        is_better_high=is_better_high,
    )


def _below(estimate: Estimate) -> float:
    return log(estimate.value / estimate.low) if estimate.low > 0 else inf


def _above(estimate: Estimate) -> float:
    return log(estimate.upper / estimate.value)
