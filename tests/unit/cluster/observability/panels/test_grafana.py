from itertools import combinations
from typing import Any

from cluster.observability.alerts.table import ALERTS
from cluster.observability.panels.grafana import dashboard
from cluster.observability.panels.panel import Curve, Panel, Subject, Unit
from cluster.observability.panels.table import SUBJECTS

ANCHORS = {alert.name: alert.anchor for alert in ALERTS}
COLUMNS = 24


def a_panel(**fields: Any) -> Panel:
    defaults: dict[str, Any] = {"title": "TTFT", "unit": Unit.SECONDS, "description": "Late or not."}
    return Panel(**{**defaults, "curves": (Curve("baton_workers", "{{pool}}"),), **fields})


def shown(panel: Panel) -> dict[str, Any]:
    _, found = dashboard([Subject(title="A row", panels=(panel,))], "docs", {"Slow": "slow"})["panels"]
    return dict(found)


def steps(panel: Panel) -> list[tuple[str, float | None]]:
    return [(step["color"], step["value"]) for step in shown(panel)["fieldConfig"]["defaults"]["thresholds"]["steps"]]


def test_dashboard_has_each_panel_below_its_row() -> None:
    panels = dashboard(SUBJECTS, "docs", ANCHORS)["panels"]
    assert [panel["title"] for panel in panels] == [
        title for subject in SUBJECTS for title in (subject.title, *(panel.title for panel in subject.panels))
    ]
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_panels_do_not_cover_each_other() -> None:
    places = [panel["gridPos"] for panel in dashboard(SUBJECTS, "docs", ANCHORS)["panels"]]
    assert [place for place in places if place["x"] + place["w"] > COLUMNS] == []
    covered = [
        (one, other)
        for one, other in combinations(places, 2)
        if one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    ]
    assert covered == []


def test_panel_has_a_query_with_its_legend() -> None:
    (target,) = shown(a_panel())["targets"]
    assert (target["expr"], target["legendFormat"]) == ("baton_workers", "{{pool}}")
    assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panel_links_to_the_runbooks_of_its_alerts() -> None:
    (link,) = shown(a_panel(alerts=("Slow",)))["links"]
    assert (link["title"], link["url"]) == ("Runbook of Slow", "docs/runbooks.md#slow")


def test_bad_values_are_red() -> None:
    assert steps(a_panel()) == [("green", None)]
    assert steps(a_panel(bad_above=1.0)) == [("green", None), ("red", 1.0)]
    assert steps(a_panel(bad_above=0.0)) == [("green", None), ("red", 0.0)]
    assert steps(a_panel(bad_below=0.85)) == [("red", None), ("green", 0.85)]
