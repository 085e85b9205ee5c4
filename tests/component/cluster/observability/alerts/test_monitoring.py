"""A real Prometheus scrapes a page of metrics, and a real Alertmanager tells a webhook, with the files of `conf/`.

All alerts are caused at once, on a clock that is sixty times as fast: five minutes are five seconds.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client import CollectorRegistry

from cluster.metrics.page import render, scrape
from cluster.observability.alerts.rules import runbook
from cluster.observability.alerts.table import ALERTS
from cluster.repository import REPO_ROOT
from tests.component.cluster.observability.alerts.shortened import shortened
from tests.component.cluster.observability.alerts.world import World
from tests.component.monitoring import RULES, running
from tests.unit.cluster.observability.test_queries import (
    EVERYWHERE,
    labels_in_table,
    metrics_of,
)

CONF = REPO_ROOT / "conf"
FASTER = 60.0
KEY = "baton-admin-of-a-test"
HEALTHY_PAGES = 20
"""How long nothing is wrong, in scrapes: longer than the window of most rates, on the fast clock."""
WAIT_S = 150.0
"""Time in which all alerts must have come. They take half a minute."""
LIKE_A_BUSY_MACHINE = {"BatonScrapeDown"}
"""Alerts that fire, on the fast clock, where nothing of this test runs for a second."""


class Site:
    """The admin port of an ingress replica that answers, one that does not while the world is broken, and a webhook."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.num_pages = self.num_refused = 0
        self._heard: dict[tuple[str, str], str] = {}
        """The link of each alert that came, by status and name."""
        self._changed = Condition()

    def page(self, is_first: bool, credential: str | None) -> tuple[int, bytes]:
        if credential != f"Bearer {KEY}":
            self.num_refused += 1
            return 401, b""
        if not is_first:
            return (503, b"") if self.world.is_broken else (200, b"")
        with self._changed:
            self.num_pages += 1
            self._changed.notify()
        return 200, render([scrape("ingress", "i")], self.world.num_missing)

    def hear(self, body: bytes) -> None:
        with self._changed:
            for alert in json.loads(body)["alerts"]:
                self._heard[alert["status"], alert["labels"]["alertname"]] = alert["annotations"]["runbook_url"]
            self._changed.notify()

    def links(self, status: str) -> dict[str, str]:
        return {name: link for (heard, name), link in self._heard.items() if heard == status}

    def wait(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, for a while."""
        with self._changed:
            self._changed.wait_for(holds, WAIT_S)


@contextmanager
def served(site: Site, is_first: bool) -> Iterator[int]:
    """Serve the site on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = site.page(is_first, self.headers["Authorization"])
            self.answer(status, body)

        def do_POST(self) -> None:
            site.hear(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(200, b"")

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def write_alertmanager(folder: Path, webhook: int) -> None:
    settings = yaml.safe_load(shortened((CONF / "alertmanager/alertmanager.yml").read_text(), FASTER))
    settings["receivers"][0]["webhook_configs"][0]["url"] = f"http://127.0.0.1:{webhook}/"
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(settings))


def write_prometheus(folder: Path, targets: list[int], alertmanager: int) -> None:
    settings = yaml.safe_load(shortened((CONF / "prometheus/prometheus.yml").read_text(), FASTER))
    settings["global"]["scrape_timeout"] = settings["global"]["scrape_interval"]
    settings["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alertmanager}"]
    (job,) = settings["scrape_configs"]
    job["authorization"]["credentials_file"] = "admin-key"
    job["static_configs"][0]["targets"] = [f"127.0.0.1:{port}" for port in targets]
    (folder / "admin-key").write_text(f"{KEY}\n")
    (folder / "baton.rules.yml").write_text(shortened(RULES.read_text(), FASTER))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))


def fired(prometheus: int) -> set[str]:
    """The alerts that have fired at any time, as Prometheus has them."""
    query = urlencode({"query": 'group by (alertname) (max_over_time(ALERTS{alertstate="firing"}[1h]))'})
    with urlopen(f"http://127.0.0.1:{prometheus}/api/v1/query?{query}", timeout=10) as answer:
        rows = json.load(answer)["data"]["result"]
    return {row["metric"]["alertname"] for row in rows}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    """Its page has the metrics of a world in place of those of this process."""
    registry, world = CollectorRegistry(auto_describe=False), World()
    registry.register(world)
    monkeypatch.setattr("cluster.metrics.page.REGISTRY", registry)
    return Site(world)


@pytest.fixture
def prometheus(site: Site, tmp_path: Path) -> Iterator[int]:
    """The port of a Prometheus that scrapes the site, and whose Alertmanager tells it."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(served(site, is_first)) for is_first in (True, False))
        write_alertmanager(tmp_path, first)
        alertmanager = stack.enter_context(
            running(
                tmp_path,
                "prometheus-alertmanager",
                "--config.file=alertmanager.yml",
                "--storage.path=alertmanager",
                "--cluster.listen-address=",
            )
        )
        write_prometheus(tmp_path, [first, second], alertmanager)
        settings = ["--config.file=prometheus.yml", "--storage.tsdb.path=prometheus"]
        yield stack.enter_context(running(tmp_path, "prometheus", *settings))


def test_series_of_the_world_are_in_the_table_of_metrics() -> None:
    unknown = {
        (metric, label)
        for name, labels in World().series()
        for metric in metrics_of(name)
        for label in labels.keys() - labels_in_table(metric) - EVERYWHERE
    }
    assert unknown == set()


def test_each_alert_reaches_the_webhook_with_its_runbook_and_is_resolved(site: Site, prometheus: int) -> None:
    every = {alert.name: runbook(alert, "docs") for alert in ALERTS}
    site.wait(lambda: site.num_pages >= HEALTHY_PAGES)
    assert fired(prometheus) <= LIKE_A_BUSY_MACHINE

    site.world.is_broken = True
    site.wait(lambda: site.links("firing").keys() == every.keys())
    silent = sorted(every.keys() - site.links("firing").keys())
    assert not silent, f"make the conditions of {silent} true in world.py, beside this test, while is_broken"
    assert site.links("firing") == every

    site.world.is_broken = False
    site.wait(lambda: site.links("resolved").keys() == every.keys())
    lasting = sorted(every.keys() - site.links("resolved").keys())
    assert not lasting, f"make the conditions of {lasting} false in world.py, beside this test, without is_broken"
    assert site.links("resolved") == every
    assert site.num_refused == 0
