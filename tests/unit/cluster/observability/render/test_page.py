"""The panels as a page, from lines that are given."""

import re
from typing import Any

from cluster.observability.panels.panel import Curve, Panel, Subject, Unit
from cluster.observability.render.page import MOST_LINES, Drawn, dashboard_page, lines_of
from cluster.observability.render.series import Series
from cluster.observability.render.window import Window

WINDOW = Window(0, 1800, 15, 15)


def a_panel(**fields: Any) -> Panel:
    defaults: dict[str, Any] = {"title": "TTFT", "unit": Unit.SECONDS, "description": "Late or `not`."}
    return Panel(**{**defaults, "curves": (Curve("baton_workers", "{{pool}}"),), **fields})


def shown(panel: Panel, *lines: Drawn, firing: tuple[Series, ...] = (), url: str = "http://p:9090") -> str:
    """What the page says after its head."""
    rows = [(Subject(title="A row", panels=(panel,)), [lines])]
    return dashboard_page(url, WINDOW, rows, firing).partition("</head>")[2]


def a_line(*values: float, name: str = "a", last: float = 1800.0) -> Drawn:
    return Drawn(name, [(last - 15.0 * (len(values) - 1 - number), value) for number, value in enumerate(values)])


def test_line_has_its_last_value_with_the_unit() -> None:
    text = shown(a_panel(), a_line(0.5, 0.25))
    assert '</i>a <data value="0.25">250 ms</data></li>' in text
    assert "<h2>A row</h2>" in text and "<h3>TTFT</h3><p>Late or <code>not</code>.</p>" in text
    assert text.count("<svg") == 1 and ">500 ms</text>" in text and ">00:30</text>" in text


def test_line_that_has_ended_says_when() -> None:
    assert "</data> at 00:20:00</li>" in shown(a_panel(), a_line(1.0, last=1200.0))


def test_panel_without_lines_says_so_and_has_no_chart() -> None:
    text = shown(a_panel(bad_above=1.0))
    assert "no data" in text and "<svg" not in text


def test_series_without_values_are_no_lines() -> None:
    found = [[Series({"pool": "decode"}, []), Series({"pool": "prefill"}, [(15.0, 1.0)])]]
    assert lines_of(a_panel(), found) == [Drawn("prefill", [(15.0, 1.0)])]


def test_limit_is_in_the_legend_and_drawn_where_values_come_near_it() -> None:
    near, far = shown(a_panel(bad_above=1.0), a_line(0.5)), shown(a_panel(bad_above=1.0), a_line(0.1))
    assert near.count('class="limit"') == far.count('class="limit"') == 1
    assert ">1 s</text>" in near and ">1 s</text>" not in far
    assert "bad from 1 s" in far and "bad below 85 %" in shown(a_panel(unit=Unit.SHARE, bad_below=0.85), a_line(1.0))


def test_axis_of_zeros_ends_at_one() -> None:
    assert ">1/s</text>" in shown(a_panel(unit=Unit.PER_SECOND, bad_above=0.0), a_line(0.0, 0.0))
    assert ">1 s</text>" in shown(a_panel(), a_line(-86400.0, -90000.0))


def test_worst_lines_are_drawn_where_there_are_too_many() -> None:
    lines = [a_line(float(number), name=f"line{number}") for number in range(MOST_LINES + 5)]
    high, low = shown(a_panel(), *lines), shown(a_panel(bad_below=1.0), *lines)
    assert f"The {MOST_LINES} highest of {MOST_LINES + 5} lines." in high
    assert ">line4 " not in high and "</i>line44 " in high
    assert "</i>line0 " in low and "</i>line44 " not in low and "lowest" in low


def test_alerts_that_fired_have_their_times() -> None:
    labels = {"alertname": "BatonTtftHigh", "severity": "page"}
    fired = Series({**labels, "slo_class": "batch"}, [(60.0, 1.0)]), Series(labels, [(120.0, 1.0)]), Series(labels, [])
    assert "<b>BatonTtftHigh (page)</b> 00:01:00 until 00:02:00" in shown(a_panel(), firing=fired)
    assert "<p>None.</p>" in shown(a_panel())


def test_texts_of_others_are_escaped() -> None:
    evil = '<script>"&'
    text = shown(
        a_panel(),
        a_line(1.0, name=evil),
        firing=(Series({"alertname": evil, "severity": evil}, [(15.0, 1.0)]),),
        url=f"http://p/{evil}",
    )
    assert "<script" not in text and text.count("&lt;script&gt;&quot;&amp;") == 4


def test_page_loads_nothing_and_is_dark_where_the_browser_is() -> None:
    page = dashboard_page("http://p:9090", WINDOW, [(Subject(title="A", panels=(a_panel(),)), [[a_line(1.0)]])], ())
    assert "default-src 'none'" in page and "prefers-color-scheme:dark" in page
    assert "http" not in page.replace("http://p:9090", "").replace("http://www.w3.org/2000/svg", "").replace(
        "http-", ""
    )


def test_limit_has_one_colour_in_the_chart_and_in_the_legend_also_in_the_dark() -> None:
    head = dashboard_page("http://p:9090", WINDOW, [], ()).partition("</head>")[0]
    of_chart = re.findall(r"\.limit\{stroke:(#\w+)", head)
    of_legend = re.findall(r"li i\.bad\{[^}]*(#\w+)", head)
    assert of_chart == of_legend and len(set(of_chart)) == 2
