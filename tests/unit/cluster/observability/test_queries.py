"""What queries name exists: metrics, labels, alerts, runbooks."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from prometheus_client import REGISTRY

from cluster.metrics.page import scrape
from cluster.observability.alerts.table import ALERTS, GROUPS
from cluster.observability.panels.panel import plain
from cluster.observability.panels.table import SUBJECTS
from cluster.repository import REPO_ROOT

NOT_EVERYWHERE = {"baton_scrape_missing", "baton_certificate_expires_seconds"}
"""Metrics that the registry of this process does not show: of the page, and of processes with TLS."""
EVERYWHERE = {"model", "cell", "deployment", "replica", "job", "instance", "le", "alertname"}
RUNBOOKS = REPO_ROOT / "docs/runbooks.md"


class Named(msgspec.Struct, frozen=True):
    where: str
    query: str
    texts: str
    """Texts in which labels are filled in."""


def queries() -> list[Named]:
    panels = [
        Named(panel.title, plain(curve.query), curve.legend)
        for subject in SUBJECTS
        for panel in subject.panels
        for curve in panel.curves
    ]
    alerts = [Named(alert.name, expanded(alert.condition), f"{alert.summary} {alert.description}") for alert in ALERTS]
    return panels + alerts


def expanded(condition: str) -> str:
    """The condition with the queries of its recordings."""
    for group in GROUPS:
        for recording in reversed(group.recordings):
            condition = condition.replace(recording.name, f"({recording.query})")
    return condition


def metrics_of(query: str) -> set[str]:
    names = re.findall(r"(?<![\w:])baton_\w+", query)
    return {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in names}


def labels_of(query: str) -> set[str]:
    grouped = [label.strip() for by in re.findall(r"(?:by|on) \(([^)]*)\)", query) for label in by.split(",")]
    return {*grouped, *re.findall(r"[{,](\w+)(?:=~|!=|!~|=)", query)} - {""}


def labels_in_table(metric: str) -> set[str]:
    collectors = {collector for name, collector in REGISTRY._names_to_collectors.items() if name.startswith(metric)}
    return {label for collector in collectors for label in getattr(collector, "_labelnames", ())}


def test_each_metric_of_a_query_is_in_the_table() -> None:
    table = {family.name for family in scrape("", "").families} | NOT_EVERYWHERE
    named = {name for each in queries() for name in metrics_of(each.query)}
    assert named - table == set()


def test_counters_of_what_must_not_happen_are_0_from_the_start_of_a_process() -> None:
    """`increase` does not see the first increment of a new series."""
    page = "from cluster.metrics.page import render, scrape; print(render([scrape('d', 'r')]).decode())"
    shown = subprocess.run([sys.executable, "-c", page], cwd=REPO_ROOT, capture_output=True, check=True).stdout.decode()
    watched = {
        (found["counter"], value)
        for alert in ALERTS
        if (
            found := re.match(
                r"sum by \([^)]*\) \(increase\((?P<counter>\w+)({\w+=~?\"(?P<values>.*?)\"})?\[", alert.condition
            )
        )
        and re.search(r"\[\w+\]\)\) > 0", alert.condition)
        for value in (found["values"] or "").split("|")
    }
    assert watched, "no condition has the form of `happened` (cluster/observability/alerts/)"
    for counter, value in watched:
        counts = re.findall(rf"(?m)^{counter}{{.*{value}.*}} (\S+)$", shown)
        values = labels_in_table(counter.removesuffix("_total"))
        assert counts and {*counts} == {"0.0"}, f"{counter} lacks a series at 0 of {value or values}: cluster/metrics/"
        assert value or not values or len(counts) > 1, f"only one of the values of {values} of {counter} is set to 0"


def test_each_label_of_a_query_is_one_of_its_metric() -> None:
    unknown = set()
    for each in queries():
        metrics = metrics_of(each.query) - {"baton_strangers"}
        if metrics and metrics == metrics_of(each.query):
            known = {label for metric in metrics for label in labels_in_table(metric)}
            unknown |= {(metric, label) for label in labels_of(each.query) - known - EVERYWHERE for metric in metrics}
    assert unknown == set()


@pytest.mark.parametrize("each", queries(), ids=lambda each: each.where)
def test_text_fills_in_labels_that_the_query_keeps(each: Named) -> None:
    filled = {*re.findall(r"\{\{(\w+)\}\}", each.texts), *re.findall(r"\$labels\.(\w+)", each.texts)}
    assert filled <= labels_of(each.query)


def test_metrics_of_vllm_are_vllm_s() -> None:
    named = {name for each in queries() for name in re.findall(r"vllm:\w+", each.query)}
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    text = (Path(spec.origin).parent / "v1/metrics/loggers.py").read_text()
    assert [name for name in named if f'"{name.removesuffix("_total")}"' not in text] == []


def test_each_alert_has_a_runbook_with_all_its_parts() -> None:
    sections = re.split(r"(?m)^## ", RUNBOOKS.read_text())[1:]
    titles = [section.partition("\n")[0] for section in sections]
    assert titles == [alert.name for alert in ALERTS], "docs/runbooks.md has a section for each alert, in their order"
    shown = [re.findall(r"(?m)^\*\*Severity:\*\* (\w+)\.$", section) for section in sections]
    assert shown == [[alert.severity.value] for alert in ALERTS], "each section has the severity of its alert"
    for section in sections:
        parts = ["**Users notice**", "**Look**", "| # | cause | what tells it apart |", "\n| 1 | ", "**Do"]
        assert [part for part in [*parts, "**Do not**"] if part not in section] == [], section.partition("\n")[0]


def test_panels_link_to_alerts_that_exist_and_each_alert_has_a_panel() -> None:
    linked = {name for subject in SUBJECTS for panel in subject.panels for name in panel.alerts}
    assert linked == {alert.name for alert in ALERTS}


def test_panels_that_a_runbook_names_exist() -> None:
    titles = {panel.title for subject in SUBJECTS for panel in subject.panels}
    text = RUNBOOKS.read_text()
    lines = [line for line in text.splitlines() if re.search(r"[Pp]anels? \*", line)]
    named = {name for line in lines for name in re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", line)}
    assert named - titles == set()
