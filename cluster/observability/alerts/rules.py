"""Writes the table of alerts as rules of Prometheus. Pure.

The text is YAML: names and durations as they are, all other texts in double quotes or as blocks.
"""

import json
from collections.abc import Iterable, Iterator

from cluster.observability.alerts.alert import Alert, AlertGroup, Recording


def rules(groups: Iterable[AlertGroup], docs: str) -> str:
    """The rules file. `docs`: the address of the folder with `runbooks.md`, to which each alert links."""
    return "groups:\n" + "\n".join("\n".join(_group(group, docs)) + "\n" for group in groups)


def runbook(alert: Alert, docs: str) -> str:
    return f"{docs}/runbooks.md#{alert.anchor}"


def _group(group: AlertGroup, docs: str) -> Iterator[str]:
    yield f"  - name: {group.name}"
    yield "    rules:"
    for recording in group.recordings:
        yield from _recording(recording)
    for alert in group.alerts:
        yield from _alert(alert, docs)


def _recording(recording: Recording) -> Iterator[str]:
    yield f"      - record: {recording.name}"
    yield from _query(recording.query)


def _alert(alert: Alert, docs: str) -> Iterator[str]:
    yield f"      - alert: {alert.name}"
    yield from _query(alert.condition)
    yield f"        for: {alert.for_}"
    yield f"        labels: {{severity: {alert.severity}}}"
    yield "        annotations:"
    yield f"          summary: {json.dumps(alert.summary)}"
    yield f"          description: {json.dumps(alert.description)}"
    yield f"          runbook_url: {json.dumps(runbook(alert, docs))}"


def _query(query: str) -> Iterator[str]:
    yield "        expr: |"
    yield from (f"          {line}" for line in query.splitlines())
