"""Writes the table of panels as a dashboard of Grafana 10 or later, in the schema of its JSON model. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from cluster.observability.panels.panel import FIRING, Panel, Subject

SCHEMA = 39
"""Grafana's version of the JSON model. Later versions of Grafana convert it when they read it."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT, PER_ROW = 8, 8, 3
"""The size of a panel, and how many stand beside each other, on Grafana's grid of 24 columns."""


def dashboard(subjects: Iterable[Subject], docs: str, anchors: Mapping[str, str]) -> dict[str, Any]:
    """The dashboard. `docs`: the address of the folder with `runbooks.md`. `anchors`: the section of each alert."""
    return {
        "uid": "baton",
        "title": "Baton",
        "tags": ["baton"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables())},
        "annotations": {"list": [_firing()]},
        "links": [_link("Runbooks", f"{docs}/runbooks.md")],
        "panels": list(_panels(subjects, docs, anchors)),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}
    yield _label_variable("model", "Model", "label_values(baton_goodput_requests_total, model)")
    yield _label_variable("cell", "Cell", "label_values(baton_workers, cell)")


def _label_variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A variable of all values of a label. Its `All` matches series without the label, too."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _firing() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": FIRING,
        "titleFormat": "{{alertname}}",
        "textFormat": "{{severity}}",
        "step": "60s",
    }


def _link(title: str, url: str) -> dict[str, Any]:
    return {"title": title, "url": url, "type": "link", "targetBlank": True}


def _panels(subjects: Iterable[Subject], docs: str, anchors: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    ids, y = count(1), 0
    for subject in subjects:
        yield {
            "id": next(ids),
            "type": "row",
            "title": subject.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": WIDTH * PER_ROW, "h": 1},
            "panels": [],
        }
        y += 1
        for place, panel in enumerate(subject.panels):
            down, across = divmod(place, PER_ROW)
            at = {"x": across * WIDTH, "y": y + down * HEIGHT, "w": WIDTH, "h": HEIGHT}
            links = [_link(f"Runbook of {alert}", f"{docs}/runbooks.md#{anchors[alert]}") for alert in panel.alerts]
            yield {"id": next(ids), "gridPos": at, "links": links, **_shown(panel)}
        y += -(-len(subject.panels) // PER_ROW) * HEIGHT


def _shown(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": curve.query,
                "legendFormat": curve.legend,
                "editorMode": "code",
                "range": True,
            }
            for number, curve in enumerate(panel.curves)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {
                    "drawStyle": "line",
                    "lineWidth": 1,
                    "fillOpacity": 5,
                    "showPoints": "never",
                    "thresholdsStyle": {"mode": "line" if len(_steps(panel)) > 1 else "off"},
                },
                "thresholds": {"mode": "absolute", "steps": _steps(panel)},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _steps(panel: Panel) -> list[dict[str, Any]]:
    """The colours of values, each from its value upwards. The first one has no value."""
    if panel.bad_below is not None:
        return [{"color": "red", "value": None}, {"color": "green", "value": panel.bad_below}]
    good = {"color": "green", "value": None}
    return [good] if panel.bad_above is None else [good, {"color": "red", "value": panel.bad_above}]
