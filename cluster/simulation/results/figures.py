"""The charts of a comparison: goodput and attainment against rate, and the distributions of TTFT and TPOT. Pure."""

from collections.abc import Callable, Sequence

import msgspec

from cluster.charts.chart import Axis, Line, cumulative, line_chart
from cluster.simulation.results.summary import RunSummary, measured
from cluster.simulation.traffic.workload import RequestRecord


class FigureRun(msgspec.Struct, frozen=True):
    """One simulated run, as the charts and tables show it."""

    label: str
    """Name of the policy, and the split of the workers, such as `goodput 4P4D`."""
    rate: float
    """Rate asked for, in requests per second."""
    summary: RunSummary
    records: list[RequestRecord]


def charts(runs: Sequence[FigureRun], compared: Sequence[FigureRun]) -> dict[str, str]:
    """SVG text by file name. `runs` are all runs, and `compared` are the runs whose distributions are drawn."""
    drawn = {
        "ttft.svg": _distribution("Time to first token", "seconds", compared, lambda record: record.ttft_s, 1.0),
        "tpot.svg": _distribution("Time per output token", "ms", compared, lambda record: record.tpot_s, 1e3),
    }
    if len({run.rate for run in runs}) > 1:
        fastest = max(run.rate for run in runs)
        rate = Axis("offered requests/s")
        drawn["goodput.svg"] = line_chart(
            "Goodput against rate",
            rate,
            Axis("requests/s within their SLO"),
            _by_rate(runs, lambda run: run.summary.goodput_per_s),
            guides=[((0.0, 0.0), (fastest, fastest))],
        )
        drawn["attainment.svg"] = line_chart(
            "SLO attainment against rate",
            rate,
            Axis("% within their SLO"),
            _by_rate(runs, lambda run: 100 * run.summary.attainment),
            guides=[((0.0, 90.0), (fastest, 90.0))],
        )
    return drawn


def _by_rate(runs: Sequence[FigureRun], value: Callable[[FigureRun], float]) -> list[Line]:
    labels = list(dict.fromkeys(run.label for run in runs))
    return [
        Line(label, sorted((run.rate, value(run)) for run in runs if run.label == label), has_marks=True)
        for label in labels
    ]


def _distribution(
    title: str, unit: str, runs: Sequence[FigureRun], seconds: Callable[[RequestRecord], float | None], scale: float
) -> str:
    lines = []
    for run in runs:
        values = [scale * value for record in measured(run.records) if (value := seconds(record)) is not None]
        lines.append(Line(f"{run.label}, {run.rate:.3g}/s", [(value, 100 * p) for value, p in cumulative(values)]))
    return line_chart(title, Axis(unit, is_logarithmic=True), Axis("% of requests"), lines)
