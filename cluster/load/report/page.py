"""A report as one HTML page with charts. Pure."""

from collections.abc import Callable, Sequence
from html import escape

from cluster.charts.chart import Axis, Line, Point, cumulative, line_chart
from cluster.charts.page import page
from cluster.load.record import LoadEnding, LoadRecord
from cluster.load.report.document import LoadReport
from cluster.load.report.figures import LoadFigures
from cluster.load.report.text import num_failed, num_refused, report_text

MOST_POINTS = 600
"""Points of a line. More make the page larger; fewer hide short peaks."""
NUM_SLICES = 60
"""Slices of time that rates are counted in. More are noisier; fewer hide short peaks."""


def report_page(report: LoadReport, records: Sequence[LoadRecord]) -> str:
    """The page. `records`: those of the run that the report shows."""
    charts = [*_rate_charts(report), *(_run_charts(records) if records else [])]
    return page(
        "baton load",
        [
            f"<h1>{escape(report.setup.model)} at {escape(report.setup.url)}</h1>",
            f"<p>{escape(report.started_at)}</p>",
            f"<pre>{escape(report_text(report))}</pre>",
            f'<div class="charts">{"".join(charts)}</div>',
        ],
    )


def _run_charts(records: Sequence[LoadRecord]) -> list[str]:
    ordered = sorted(records, key=lambda record: record.due_s)
    at = Axis("seconds from the start at which requests were due")
    return [
        _distribution("Time to first token", ordered, lambda record: record.ttft_s),
        _distribution("Time per output token", ordered, lambda record: record.tpot_s),
        _distribution("End to end", ordered, lambda record: record.e2e_s),
        line_chart("Time to first token, by time", at, Axis("ms"), [_by_time("TTFT", ordered, lambda r: r.ttft_s)]),
        line_chart("Time per output token, by time", at, Axis("ms"), [_by_time("TPOT", ordered, lambda r: r.tpot_s)]),
        line_chart("Requests", at, Axis("requests/s"), _endings_by_time(ordered)),
    ]


def _rate_charts(report: LoadReport) -> list[str]:
    runs = sorted((run for run in report.runs if run.rate_asked is not None), key=lambda run: run.rate_asked or 0.0)
    if len(runs) < 2:
        return []
    rate, fastest = Axis("asked requests/s"), runs[-1].rate_asked or 0.0
    target = 100 * report.highest_rate.target if report.highest_rate else 90.0
    return [
        line_chart(
            "Goodput against rate",
            rate,
            Axis("requests/s"),
            [
                _by_rate("good", runs, lambda run: run.goodput_per_s.value),
                _by_rate("finished", runs, lambda run: run.finished_per_s),
            ],
            guides=[((0.0, 0.0), (fastest, fastest))],
        ),
        line_chart(
            "Share of the requests against rate",
            rate,
            Axis("%"),
            [
                _by_rate("within SLO", runs, lambda run: 100 * run.attainment.value),
                _by_rate("refused", runs, lambda run: 100 * num_refused(run) / max(1, run.num_requests)),
                _by_rate("failed", runs, lambda run: 100 * num_failed(run) / max(1, run.num_requests)),
            ],
            guides=[((0.0, target), (fastest, target))],
        ),
    ]


def _by_rate(name: str, runs: Sequence[LoadFigures], value: Callable[[LoadFigures], float]) -> Line:
    return Line(name, [(run.rate_asked or 0.0, value(run)) for run in runs], has_marks=True)


def _distribution(title: str, records: Sequence[LoadRecord], seconds: Callable[[LoadRecord], float | None]) -> str:
    values = [1e3 * value for record in records if (value := seconds(record)) is not None]
    line = Line("requests", [(value, 100 * share) for value, share in cumulative(values)])
    return line_chart(title, Axis("ms", is_logarithmic=True), Axis("% of requests"), [line])


def _by_time(name: str, records: Sequence[LoadRecord], seconds: Callable[[LoadRecord], float | None]) -> Line:
    points: list[Point] = [(r.due_s, 1e3 * value) for r in records if (value := seconds(r)) is not None]
    return Line(name, points[:: max(1, len(points) // MOST_POINTS)])


def _endings_by_time(records: Sequence[LoadRecord]) -> list[Line]:
    """Requests per second by how they ended, in slices of the time at which they were due."""
    slice_s = max(1.0, records[-1].due_s / NUM_SLICES)
    num_slices = int(records[-1].due_s / slice_s) + 1
    lines = []
    for ending in LoadEnding:
        counts = [0] * num_slices
        for record in records:
            if record.ending is ending:
                counts[int(record.due_s / slice_s)] += 1
        if any(counts):
            lines.append(
                Line(ending.value, [(number * slice_s, count / slice_s) for number, count in enumerate(counts)])
            )
    return lines
