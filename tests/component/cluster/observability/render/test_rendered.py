"""The page of a real Prometheus, which has half an hour of a service that was healthy, broken, and healthy again."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from math import isfinite
from pathlib import Path
from threading import Event
from time import time
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from prometheus_client.metrics_core import Metric

from cluster.observability.panels.panel import Panel, plain
from cluster.observability.panels.table import SUBJECTS
from cluster.observability.render.__main__ import main
from cluster.observability.render.series import Series
from tests.component.cluster.observability.alerts.world import World
from tests.component.monitoring import run_tool, running

SCRAPE = 15
NUM_SCRAPES = 120
BROKEN = range(40, 80)
"""The scrapes at which everything is wrong."""
NUM_LOOKS = 200
"""Looks at a Prometheus that starts, which takes a second."""


def history(end: int) -> str:
    """What was scraped until `end`, as OpenMetrics with times."""
    world, lines = World(), []
    for number in range(NUM_SCRAPES):
        world.is_broken = number in BROKEN
        firing = Metric("ALERTS", "Alerts that fire.", "gauge")
        firing.add_sample("ALERTS", {"alertname": "BatonTtftHigh", "alertstate": "firing", "severity": "page"}, 1)
        for metric in [*world.collect(), *([firing] if world.is_broken else [])]:
            for name, labels, value, *_ in metric.samples:
                written = ",".join(f"{label}={json.dumps(text)}" for label, text in labels.items())
                lines.append(f"{name}{{{written}}} {value} {end - (NUM_SCRAPES - 1 - number) * SCRAPE}\n")
    return "".join([*lines, "# EOF\n"])


@pytest.fixture(scope="module")
def end() -> int:
    return int(time()) // SCRAPE * SCRAPE


@pytest.fixture(scope="module")
def prometheus(end: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus with this history, which scrapes nothing."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "history.txt").write_text(history(end))
    (folder / "prometheus.yml").write_text("{}")
    run_tool("promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "history.txt", folder / "blocks")
    with running(folder, "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=blocks") as port:
        url = f"http://127.0.0.1:{port}"
        assert any(is_ready(url) or Event().wait(0.05) for _ in range(NUM_LOOKS))
        yield url


def is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/-/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except URLError:
        return False


class Page(HTMLParser):
    """The lines of each panel that last until the end, with the figures in their legends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.panels: dict[str, dict[str, float]] = {}
        self.num_charts = 0
        self._within = self._name = self._figure = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag
        self.num_charts += tag == "svg"
        if tag == "data":
            self._figure = dict(attrs)["value"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "li" and self._figure:
            list(self.panels.values())[-1][self._name] = float(self._figure)
        self._within, self._figure = tag, self._figure if tag == "data" else ""

    def handle_data(self, data: str) -> None:
        if self._within == "h3":
            self.panels[data] = {}
        elif self._within == "i":
            self._name = data.strip()
        elif self._within == "data" and data.startswith(" at "):
            self._figure = ""


def asked(url: str, panel: Panel, time: int) -> dict[str, float]:
    """The figures of a panel at a time, as Prometheus tells them."""
    found = {}
    for curve in panel.curves:
        asked = urlencode({"query": plain(curve.query, window=f"{4 * SCRAPE}s"), "time": time})
        with urlopen(f"{url}/api/v1/query?{asked}", timeout=10) as answer:
            rows: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        found.update({Series(row["metric"], []).named(curve.legend): float(row["value"][1]) for row in rows})
    return {name: value for name, value in found.items() if isfinite(value)}


def test_page_has_the_figures_that_prometheus_has(
    prometheus: str, end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, until = tmp_path / "page.html", datetime.fromtimestamp(end, UTC).isoformat()
    monkeypatch.setattr("sys.argv", ["", "--prometheus", prometheus, "--until", until, "--out", str(file)])
    main()
    text = file.read_text()
    shown = Page(text)
    panels = [panel for subject in SUBJECTS for panel in subject.panels]
    assert shown.panels == {panel.title: asked(prometheus, panel, end) for panel in panels}
    assert shown.num_charts >= 15
    assert shown.num_charts + text.count("no data") == len(panels)
    assert text.count("<b>BatonTtftHigh (page)</b>") == 1
