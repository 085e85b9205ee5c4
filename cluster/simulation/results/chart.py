"""Draw line charts as SVG text, without a plotting library. Any browser shows them. Pure."""

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10

import msgspec

WIDTH, HEIGHT = 800, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 215, 40, 54
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#6b7280")
NUM_TICKS = 6
STYLE = (
    "text{font:12px sans-serif;fill:#1f2937}.title{font-size:15px;font-weight:600}"
    ".grid{stroke:#e5e7eb}.line{fill:none;stroke-width:2}.guide{stroke:#9ca3af;stroke-dasharray:5 4}"
)

Point = tuple[float, float]


class Line(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[Point]
    has_marks: bool = False


class Axis(msgspec.Struct, frozen=True):
    label: str
    is_logarithmic: bool = False


def line_chart(title: str, x: Axis, y: Axis, lines: Sequence[Line], guides: Sequence[tuple[Point, Point]] = ()) -> str:
    """Draw the lines with axes and a legend. Each of `guides` is drawn as a straight dashed line between two points."""
    points = [point for line in lines for point in line.points if _fits(point, x, y)]
    x_scale, x_ticks = _scale(x, [px for px, _ in points], LEFT, WIDTH - RIGHT)
    y_scale, y_ticks = _scale(y, [py for _, py in points], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<style>{STYLE}</style><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
        *(_x_tick(x_scale(tick), tick) for tick in x_ticks),
        *(_y_tick(y_scale(tick), tick) for tick in y_ticks),
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{escape(x.label)}</text>',
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>",
        f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath><g clip-path="url(#plot)">',
        *(_guide([(x_scale(px), y_scale(py)) for px, py in guide]) for guide in guides),
        "</g>",
    ]
    for number, line in enumerate(lines):
        drawn = [(x_scale(px), y_scale(py)) for px, py in line.points if _fits((px, py), x, y)]
        parts += _line(line, drawn, COLOURS[number % len(COLOURS)], TOP + 10 + 18 * number)
    return "\n".join([*parts, "</svg>\n"])


def cumulative(values: Sequence[float], num_points: int = 200) -> list[Point]:
    """Points of the cumulative distribution: a value, and the share of all values that are not above it."""
    ordered = sorted(values)
    picks = sorted({round(i * (len(ordered) - 1) / (num_points - 1)) for i in range(num_points)}) if ordered else []
    return [(ordered[i], (i + 1) / len(ordered)) for i in picks]


def _fits(point: Point, x: Axis, y: Axis) -> bool:
    return (point[0] > 0 or not x.is_logarithmic) and (point[1] > 0 or not y.is_logarithmic)


def _scale(
    axis: Axis, values: Sequence[float], start: float, end: float
) -> tuple[Callable[[float], float], list[float]]:
    """A function from values to positions in the picture, and the values that get a tick."""
    if axis.is_logarithmic:
        lowest, highest = (min(values), max(values)) if values else (1.0, 10.0)
        first, last = floor(log10(lowest)), max(ceil(log10(highest)), floor(log10(lowest)) + 1)
        per_decade = (1, 2, 5) if last - first <= 3 else (1,)
        ticks = [m * 10.0**power for power in range(first, last + 1) for m in per_decade]
        low, high = log10(lowest), max(log10(highest), log10(lowest) + 0.1)
        return (
            lambda value: start + (end - start) * (log10(value) - low) / (high - low),
            [tick for tick in ticks if low - 1e-9 <= log10(tick) <= high + 1e-9],
        )
    top = max([*values, 1e-9])
    step = _round_step(top / NUM_TICKS)
    count = ceil(top / step - 1e-9)
    return lambda value: start + (end - start) * value / (count * step), [i * step for i in range(count + 1)]


def _round_step(least: float) -> float:
    power = 10.0 ** floor(log10(least))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= least)


def _guide(ends: Sequence[Point]) -> str:
    (x0, y0), (x1, y1) = ends
    return f'<path class="guide" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"/>'


def _x_tick(place: float, value: float) -> str:
    return (
        f'<path class="grid" d="M{place:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
        f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:.6g}</text>'
    )


def _y_tick(place: float, value: float) -> str:
    return (
        f'<path class="grid" d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 8}" y="{place + 4:.1f}" text-anchor="end">{value:.6g}</text>'
    )


def _line(line: Line, drawn: Sequence[Point], colour: str, legend_y: float) -> list[str]:
    path = "L".join(f"{px:.1f} {py:.1f}" for px, py in drawn)
    marks = drawn if line.has_marks else ()
    x = WIDTH - RIGHT + 14
    return [
        f'<path class="line" stroke="{colour}" d="M{path}"/>' if drawn else "",
        *(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in marks),
        f'<path class="line" stroke="{colour}" d="M{x} {legend_y}h18"/>',
        f'<text x="{x + 24}" y="{legend_y + 4}">{escape(line.name)}</text>',
    ]
