"""Draw line charts as SVG text, without a plotting library. Any browser shows them. Pure.

`line_chart` draws a picture that stands alone, with a title and a legend. `plot` draws lines and axes alone, for a page
that has both.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import ceil, floor, inf, log10

import msgspec

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#6b7280")
NUM_TICKS = 6
STYLE = (
    "text{font:12px sans-serif;fill:#1f2937}.title{font-size:15px;font-weight:600}.paper{fill:#fff}"
    ".grid{stroke:#e5e7eb}.line{fill:none;stroke-width:2;stroke-linecap:round}"
    ".guide{stroke:#9ca3af;stroke-dasharray:5 4}.limit{stroke:#dc2626;stroke-dasharray:5 4}"
)
MARGIN = 2
"""Pixels around a plot in which lines still show. Fewer cut lines along its edge in two; more let them leave it."""

Point = tuple[float, float]


class ChartFrame(msgspec.Struct, frozen=True):
    """The size of a picture, and the room around the plot in it, in pixels."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int

    @property
    def x_end(self) -> int:
        return self.width - self.right

    @property
    def y_end(self) -> int:
        return self.height - self.bottom


ALONE = ChartFrame(800, 460, left=70, right=215, top=40, bottom=54)
"""Has room for a title above the plot and for a legend beside it."""
IN_PAGE = ChartFrame(500, 190, left=64, right=20, top=8, bottom=24)
"""Has room for ticks."""


class Line(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[Point]
    has_marks: bool = False
    longest_gap: float = inf
    """Points that are farther apart than this, on the x axis, are not joined."""


class Axis(msgspec.Struct, frozen=True):
    label: str
    is_logarithmic: bool = False
    suffix: str = ""
    """What follows the number of each tick: the unit."""
    span: tuple[float, float] | None = None
    """The values at its ends. None for an axis that begins at 0, or with the least value if it is logarithmic, and that
    ends where the values do.
    """
    ticks: Sequence[tuple[float, str]] = ()
    """The values that get a tick, with its text, on an axis with a span."""
    reach: float = 0.0
    """A value that an axis from 0 has room for, whatever the values are."""


class _Scale(msgspec.Struct, frozen=True):
    place: Callable[[float], float]
    """From a value to its place in the picture."""
    ticks: Sequence[tuple[float, str]]


def line_chart(title: str, x: Axis, y: Axis, lines: Sequence[Line], guides: Sequence[tuple[Point, Point]] = ()) -> str:
    """Draw the lines with axes and a legend. Each of `guides` is drawn as a straight dashed line between two points."""
    frame = ALONE
    middle = (frame.left + frame.x_end) / 2, (frame.top + frame.y_end) / 2
    parts = [
        _head(frame),
        f'<style>{STYLE}</style><rect class="paper" width="{frame.width}" height="{frame.height}"/>',
        f'<text class="title" x="{frame.left}" y="24">{escape(title)}</text>',
        f'<text x="{middle[0]}" y="{frame.height - 12}" text-anchor="middle">{escape(x.label)}</text>',
        f'<text transform="translate(18 {middle[1]}) rotate(-90)" text-anchor="middle">{escape(y.label)}</text>',
        *_plot(frame, x, y, lines, [("guide", guide) for guide in guides]),
    ]
    for number, line in enumerate(lines):
        left, down = frame.x_end + 14, frame.top + 10 + 18 * number
        parts += [
            f'<path class="line" stroke="{colour(number)}" d="M{left} {down}h18"/>',
            f'<text x="{left + 24}" y="{down + 4}">{escape(line.name)}</text>',
        ]
    return "\n".join([*parts, "</svg>\n"])


def plot(name: str, x: Axis, y: Axis, lines: Sequence[Line], limits: Sequence[float] = ()) -> str:
    """Draw the lines with ticks alone, for a page that has STYLE. `name`: for readers who do not see the picture.
    `limits`: values at which dashed lines cross the plot.
    """
    left, right = x.span or (0.0, max((px for line in lines for px, _ in line.points), default=0.0))
    across = [("limit", ((left, limit), (right, limit))) for limit in limits]
    label = f'<title>{escape(name)}</title><rect class="paper" width="{IN_PAGE.width}" height="{IN_PAGE.height}"/>'
    return "\n".join([_head(IN_PAGE), label, *_plot(IN_PAGE, x, y, lines, across), "</svg>\n"])


def colour(number: int) -> str:
    """The colour of a line, by its place among the lines."""
    return COLOURS[number % len(COLOURS)]


def cumulative(values: Sequence[float], num_points: int = 200) -> list[Point]:
    """Points of the cumulative distribution: a value, and the share of all values that are not above it."""
    ordered = sorted(values)
    picks = sorted({round(i * (len(ordered) - 1) / (num_points - 1)) for i in range(num_points)}) if ordered else []
    return [(ordered[i], (i + 1) / len(ordered)) for i in picks]


def _head(frame: ChartFrame) -> str:
    size = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>'


def _plot(
    frame: ChartFrame, x: Axis, y: Axis, lines: Sequence[Line], straight: Sequence[tuple[str, tuple[Point, Point]]]
) -> Iterator[str]:
    """Ticks, and the lines within the plot. `straight`: the class and the ends of each dashed line."""
    points = [point for line in lines for point in line.points if _fits(point, x, y)]
    x_scale = _scale(x, [px for px, _ in points], frame.left, frame.x_end)
    y_scale = _scale(y, [py for _, py in points], frame.y_end, frame.top)
    yield from (_x_tick(frame, x_scale.place(value), text) for value, text in x_scale.ticks)
    yield from (_y_tick(frame, y_scale.place(value), text) for value, text in y_scale.ticks)
    # The charts of a page have one name for it: those of one frame are alike
    clip = f"plot{frame.width}x{frame.height}"
    yield (
        f'<clipPath id="{clip}"><rect x="{frame.left - MARGIN}" y="{frame.top - MARGIN}" '
        f'width="{frame.x_end - frame.left + 2 * MARGIN}" height="{frame.y_end - frame.top + 2 * MARGIN}"/></clipPath>'
        f'<g clip-path="url(#{clip})">'
    )
    for kind, ((x0, y0), (x1, y1)) in straight:
        start, end = (x_scale.place(x0), y_scale.place(y0)), (x_scale.place(x1), y_scale.place(y1))
        yield f'<path class="{kind}" d="M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"/>'
    for number, line in enumerate(lines):
        pieces = [
            [(x_scale.place(px), y_scale.place(py)) for px, py in piece]
            for piece in _pieces([point for point in line.points if _fits(point, x, y)], line.longest_gap)
        ]
        yield from _line(pieces, colour(number), line.has_marks)
    yield "</g>"


def _fits(point: Point, x: Axis, y: Axis) -> bool:
    return (point[0] > 0 or not x.is_logarithmic) and (point[1] > 0 or not y.is_logarithmic)


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> _Scale:
    if axis.span is not None:
        first, last = axis.span
        return _Scale(lambda value: start + (end - start) * (value - first) / (last - first), axis.ticks)
    if axis.is_logarithmic:
        return _logarithmic(axis, values, start, end)
    top = max([*values, axis.reach, 1e-9])
    step = _round_step(top / NUM_TICKS)
    count = ceil(top / step - 1e-9)
    return _Scale(
        lambda value: start + (end - start) * value / (count * step),
        [_ticked(i * step, axis) for i in range(count + 1)],
    )


def _logarithmic(axis: Axis, values: Sequence[float], start: float, end: float) -> _Scale:
    lowest, highest = (min(values), max(values)) if values else (1.0, 10.0)
    first, last = floor(log10(lowest)), max(ceil(log10(highest)), floor(log10(lowest)) + 1)
    per_decade = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [m * 10.0**power for power in range(first, last + 1) for m in per_decade]
    low, high = log10(lowest), max(log10(highest), log10(lowest) + 0.1)
    return _Scale(
        lambda value: start + (end - start) * (log10(value) - low) / (high - low),
        [_ticked(tick, axis) for tick in ticks if low - 1e-9 <= log10(tick) <= high + 1e-9],
    )


def _ticked(value: float, axis: Axis) -> tuple[float, str]:
    return value, f"{value:.6g}{axis.suffix}"


def _round_step(least: float) -> float:
    power = 10.0 ** floor(log10(least))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= least)


def _x_tick(frame: ChartFrame, place: float, text: str) -> str:
    return (
        f'<path class="grid" d="M{place:.1f} {frame.top}V{frame.y_end}"/>'
        f'<text x="{place:.1f}" y="{frame.y_end + 18}" text-anchor="middle">{escape(text)}</text>'
    )


def _y_tick(frame: ChartFrame, place: float, text: str) -> str:
    return (
        f'<path class="grid" d="M{frame.left} {place:.1f}H{frame.x_end}"/>'
        f'<text x="{frame.left - 8}" y="{place + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _pieces(points: Sequence[Point], longest_gap: float) -> Iterator[Sequence[Point]]:
    """The points, apart where the gap between two is too long."""
    if not points:
        return
    breaks = [i for i in range(1, len(points)) if points[i][0] - points[i - 1][0] > longest_gap]
    yield from (points[i:j] for i, j in zip([0, *breaks], [*breaks, len(points)], strict=True))


def _line(pieces: Sequence[Sequence[Point]], colour: str, has_marks: bool) -> Iterator[str]:
    # A piece of one point is a dot: the ends of a line without length are round
    paths = [piece if len(piece) > 1 else [*piece, *piece] for piece in pieces]
    drawn = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in path) for path in paths)
    if drawn:
        yield f'<path class="line" stroke="{colour}" d="{drawn}"/>'
    if has_marks:
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for piece in pieces for x, y in piece)
