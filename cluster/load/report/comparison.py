"""Two reports side by side: ratios, and how sure they are. Pure.

The interval of a ratio comes from those of both sides, which are independent: the half widths of their logarithms add
as squares. A ratio of values whose interval reaches 0 has no lower end.
"""

from collections.abc import Callable
from math import exp, hypot, inf, log

import msgspec

from cluster.load.report.document import LoadReport
from cluster.load.report.figures import Latency, LoadFigures
from cluster.load.report.intervals import Estimate
from cluster.simulation.results.summary import aligned


class Ratio(msgspec.Struct, frozen=True):
    """One figure of both reports."""

    name: str
    first: float
    second: float
    ratio: Estimate | None
    """Second over first. None where the first is 0."""
    is_better_high: bool

    @property
    def verdict(self) -> str:
        if self.ratio is None or self.ratio.low <= 1 <= self.ratio.high:
            return "no difference that shows"
        return "better" if (self.ratio.value > 1) is self.is_better_high else "worse"


def ratios(first: LoadFigures, second: LoadFigures) -> list[Ratio]:
    """The figures that both runs have."""
    rows = [
        _ratio("good/s", first.goodput_per_s, second.goodput_per_s, is_better_high=True),
        _ratio("attained", first.attainment, second.attainment, is_better_high=True),
    ]
    for name, latency_of in _LATENCIES.items():
        one, other = latency_of(first), latency_of(second)
        if one is not None and other is not None:
            rows += [
                _ratio(f"{name} {field} ms", _in_ms(one, field), _in_ms(other, field), is_better_high=False)
                for field in ("p50", "p90", "p99")
            ]
    return rows


def comparison_text(first: LoadReport, second: LoadReport, names: tuple[str, str]) -> str:
    rows = [["second / first", *names, "ratio", "95 %", ""]]
    for row in ratios(first.shown, second.shown):
        ratio = f"{row.ratio.value:.3f}" if row.ratio else "-"
        between = f"{row.ratio.low:.3f}-{row.ratio.high:.3f}" if row.ratio else "-"
        rows.append([row.name, f"{row.first:.4g}", f"{row.second:.4g}", ratio, between, row.verdict])
    further = [
        ("finished/s", first.shown.finished_per_s, second.shown.finished_per_s),
        ("output tokens/s", first.shown.output_tokens_per_s, second.shown.output_tokens_per_s),
    ]
    if first.highest_rate and second.highest_rate:
        further.append(("highest req/s", first.highest_rate.per_s, second.highest_rate.per_s))
    for name, one, other in further:
        rows.append([name, f"{one:.4g}", f"{other:.4g}", f"{other / one:.3f}" if one else "-", "", ""])
    lines = [f"first: {_what(first)}", f"second: {_what(second)}", "", aligned(rows)]
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


_LATENCIES: dict[str, Callable[[LoadFigures], Latency | None]] = {
    "TTFT": lambda run: run.ttft_s,
    "TPOT": lambda run: run.tpot_s,
    "E2E": lambda run: run.e2e_s,
}


def _what(report: LoadReport) -> str:
    setup = report.setup
    return f"{setup.model} at {setup.url}, {setup.workload}, {report.started_at}"


def _in_ms(latency: Latency, field: str) -> Estimate:
    estimate: Estimate = getattr(latency, field)
    return estimate.scaled(1e3)


def _ratio(name: str, first: Estimate, second: Estimate, *, is_better_high: bool) -> Ratio:
    if first.value <= 0:
        return Ratio(name, first.value, second.value, None, is_better_high)
    value = second.value / first.value
    if value <= 0:
        return Ratio(name, first.value, second.value, Estimate(0.0, 0.0, second.high / first.value), is_better_high)
    down = hypot(_below(second), _above(first))
    up = hypot(_above(second), _below(first))
    ratio = Estimate(value, value * exp(-down), value * exp(up) if up < inf else inf)
    return Ratio(name, first.value, second.value, ratio, is_better_high)


def _below(estimate: Estimate) -> float:
    return log(estimate.value / estimate.low) if estimate.low > 0 else inf


def _above(estimate: Estimate) -> float:
    return log(estimate.high / estimate.value)
