"""Draws the panels as one HTML page. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

import msgspec

from cluster.charts.chart import Axis, Line, colour, plot
from cluster.charts.page import page
from cluster.observability.panels.panel import Panel, Subject
from cluster.observability.render.series import Series
from cluster.observability.render.units import scale_of, shown
from cluster.observability.render.window import Window, date

MOST_LINES = 40
"""Lines of a panel: those with the worst values are drawn. More make the page large, and cannot be told apart; fewer
hide workers.
"""
REACH = 4.0
"""How many times as high as the highest value a limit is drawn. Higher presses the lines to the bottom; lower hides how
far they are from the limit.
"""
_STYLE = (
    "body>h2{margin:28px 0 8px}.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(400px,1fr));gap:12px}"
    "figure{margin:0;padding:10px 12px;border:1px solid #8884;border-radius:6px}h3{margin:0;font-size:15px}"
    "figure p{margin:2px 0 6px;font-size:12px;opacity:.8}figure .none{font-size:14px;margin:16px 0}"
    "ul{list-style:none;margin:4px 0 0;padding:0;display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12px}"
    "li i{display:inline-block;width:14px;height:3px;margin-right:5px;vertical-align:middle}"
    "li i.bad{height:0;border-top:2px dashed #dc2626}data{font-weight:600}"
    "@media (prefers-color-scheme:dark){li i.bad{border-color:#f87171}}"
)


class Drawn(msgspec.Struct, frozen=True):
    """A line of a panel."""

    name: str
    points: Sequence[tuple[float, float]]
    """At least one."""


def lines_of(panel: Panel, found: Sequence[Sequence[Series]]) -> list[Drawn]:
    """The lines of a panel. `found`: the series of each of its curves."""
    return [
        Drawn(series.named(curve.legend), series.points)
        for curve, all_series in zip(panel.curves, found, strict=True)
        for series in all_series
        if series.points
    ]


def dashboard_page(
    url: str, window: Window, rows: Iterable[tuple[Subject, Iterable[Sequence[Drawn]]]], firing: Sequence[Series]
) -> str:
    """The page. `url`: the Prometheus. `rows`: each row of panels, with the lines of each
    panel, which are taken when it is drawn.
    """
    return page("Baton", _parts(url, window, rows, firing), _STYLE)


def _parts(
    url: str, window: Window, rows: Iterable[tuple[Subject, Iterable[Sequence[Drawn]]]], firing: Sequence[Series]
) -> Iterator[str]:
    yield (
        f"<h1>Baton</h1><p>{date(window.start)} until {date(window.end)}, as {escape(url)} has it. There is a value "
        f"every {window.step} s. Rates and quantiles are those of {window.rate_interval} s.</p>"
    )
    yield "<h2>Alerts that fired</h2>"
    yield from _alerts(window, firing)
    for subject, panels in rows:
        yield f'<h2>{escape(subject.title)}</h2><div class="charts">'
        for panel, lines in zip(subject.panels, panels, strict=True):
            yield from _figure(panel, lines, window)
        yield "</div>"


def _alerts(window: Window, firing: Sequence[Series]) -> Iterator[str]:
    """The alerts with the first and the last time at which they fired."""
    times: dict[str, list[float]] = {}
    for series in (series for series in firing if series.points):
        times.setdefault(series.named("{{alertname}} ({{severity}})"), []).extend(time for time, _ in series.points)
    if not times:
        yield "<p>None.</p>"
        return
    yield "<ul>"
    for name, fired in sorted(times.items()):
        yield f"<li><b>{escape(name)}</b> {window.moment(min(fired))} until {window.moment(max(fired))}</li>"
    yield "</ul>"


def _figure(panel: Panel, lines: Sequence[Drawn], window: Window) -> Iterator[str]:
    description = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(panel.description))
    yield f"<figure><h3>{escape(panel.title)}</h3><p>{description}</p>"
    if lines:
        drawn = _worst(panel, lines)
        yield _chart(panel, drawn, window)
        yield f"<ul>{''.join(_legend(panel, drawn, window))}</ul>"
        if len(drawn) < len(lines):
            which = "lowest" if panel.bad_below is not None else "highest"
            yield f"<p>The {len(drawn)} {which} of {len(lines)} lines.</p>"
    else:
        yield '<p class="none">no data</p>'
    yield "</figure>"


def _worst(panel: Panel, lines: Sequence[Drawn]) -> list[Drawn]:
    """The lines that are drawn, in the order of all."""
    sign = 1.0 if panel.bad_below is not None else -1.0
    ranked = sorted(range(len(lines)), key=lambda number: min(sign * value for _, value in lines[number].points))
    return [lines[number] for number in sorted(ranked[:MOST_LINES])]


def _limits(panel: Panel) -> Mapping[str, float]:
    """The values at which the figure becomes bad, by what the legend says of them."""
    limits = {"bad from": panel.bad_above, "bad below": panel.bad_below}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _chart(panel: Panel, lines: Sequence[Drawn], window: Window) -> str:
    highest = max(value for line in lines for _, value in line.points)
    limits = _limits(panel).values()
    reach = max((limit for limit in limits if limit <= REACH * highest), default=0.0)
    scale = scale_of(panel.unit, max(highest, reach, 0.0))
    # An axis of nothing but zeros ends at one
    reach = max(reach, 0.0 if highest > 0 else scale.size)
    return plot(
        panel.title,
        Axis("time", span=(window.start, window.end), ticks=list(window.ticks())),
        Axis(panel.unit, suffix=scale.suffix, reach=reach / scale.size),
        [
            Line(line.name, [(time, value / scale.size) for time, value in line.points], longest_gap=1.5 * window.step)
            for line in lines
        ],
        [limit / scale.size for limit in limits],
    )


def _legend(panel: Panel, lines: Sequence[Drawn], window: Window) -> Iterator[str]:
    """The lines with their last values, and the limits."""
    for number, line in enumerate(lines):
        time, value = line.points[-1]
        ended = f" at {window.moment(time)}" if time < window.end else ""
        yield (
            f'<li><i style="background:{colour(number)}"></i>{escape(line.name)} '
            f'<data value="{value!r}">{escape(shown(panel.unit, value))}</data>{ended}</li>'
        )
    for name, limit in _limits(panel).items():
        yield f'<li><i class="bad"></i>{name} {escape(shown(panel.unit, limit))}</li>'
