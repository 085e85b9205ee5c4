import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from cluster.charts.chart import IN_PAGE, Axis, Line, cumulative, line_chart, plot


def drawn(lines: list[Line], x: Axis, y: Axis, *limits: float) -> ET.Element:
    return ET.fromstring(plot("a < b", x, y, lines, limits))


def paths(root: ET.Element, kind: str) -> list[str]:
    return [node.attrib["d"] for node in root.iter() if node.get("class") == kind]


def texts(root: ET.Element) -> list[str]:
    return [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_chart_is_valid_svg_with_all_lines_inside(is_logarithmic: bool) -> None:
    lines = [Line("a & b", [(0.0, 1.0), (2.0, 3.0)], has_marks=True), Line("empty", [])]
    text = line_chart("TTFT <s>", Axis("x", is_logarithmic), Axis("y"), lines, guides=[((0.5, 0.0), (1.0, 1.0))])
    root = ET.fromstring(text)
    assert {"TTFT <s>", "a & b", "empty", "x", "y"} <= {node.text for node in root.iter()}
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == (1 if is_logarithmic else 2)


def test_cumulative_shares_rise_to_one() -> None:
    points = cumulative([3.0, 1.0, 2.0, *range(500)])
    assert points[-1][1] == 1.0 and len(points) == 200
    assert all(a <= b for a, b in pairwise(points))
    assert cumulative([]) == []


def test_plot_has_the_ticks_that_a_span_has_and_numbers_with_their_unit() -> None:
    x, y = Axis("", span=(100.0, 200.0), ticks=[(150.0, "08:00")]), Axis("", suffix=" ms")
    root = drawn([Line("a", [(100.0, 0.0), (200.0, 4.0)])], x, y)
    assert texts(root) == ["08:00", "0 ms", "1 ms", "2 ms", "3 ms", "4 ms"]
    (line,) = paths(root, "line")
    assert line == f"M{IN_PAGE.left}.0 {IN_PAGE.y_end}.0L{IN_PAGE.x_end}.0 {IN_PAGE.top}.0"


def test_points_that_are_far_apart_are_not_joined_and_one_alone_is_a_dot() -> None:
    points = [(0.0, 1.0), (1.0, 1.0), (5.0, 1.0)]
    (line,) = paths(drawn([Line("a", points, longest_gap=1.5)], Axis(""), Axis("")), "line")
    first, second = line.split("M")[1:]
    assert len(set(first.split("L"))) == 2
    assert len(second.split("L")) == 2 and len(set(second.split("L"))) == 1


def test_limit_crosses_the_plot_where_the_axis_reaches_it() -> None:
    root = drawn([Line("a", [(0.0, 1.0), (1.0, 1.0)])], Axis(""), Axis("", reach=2.0), 2.0)
    assert paths(root, "limit") == [f"M{IN_PAGE.left}.0 {IN_PAGE.top}.0L{IN_PAGE.x_end}.0 {IN_PAGE.top}.0"]
