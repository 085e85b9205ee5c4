"""The part of docs/operating.md that is made from the tables of alerts and panels. Pure."""

from collections.abc import Iterable, Iterator

from cluster.observability.alerts.alert import Alert
from cluster.observability.panels.panel import Panel, Subject

HEADING = "## Alerts\n"
"""What is after this heading of the page is generated. What is before it is written by hand."""


def updated(page: str, alerts: Iterable[Alert], subjects: Iterable[Subject]) -> str:
    """The page with the part that is generated now."""
    by_hand, _, _ = page.partition(HEADING)
    return by_hand + HEADING + "\n".join(["", *_alerts(alerts), "", "## Panels", "", *_panels(subjects)]) + "\n"


def _alerts(alerts: Iterable[Alert]) -> Iterator[str]:
    yield "`python -m cluster.observability` writes this list and the next one from the tables of alerts and panels."
    yield ""
    yield "| alert | severity | after | meaning |"
    yield "|---|---|---|---|"
    for alert in alerts:
        yield f"| [{alert.name}](runbooks.md#{alert.anchor}) | {alert.severity} | {alert.for_} | {alert.description} |"


def _panels(subjects: Iterable[Subject]) -> Iterator[str]:
    yield "| row | panel | meaning |"
    yield "|---|---|---|"
    for subject in subjects:
        yield from (f"| {subject.title} | {panel.title} | {_meaning(panel)} |" for panel in subject.panels)


def _meaning(panel: Panel) -> str:
    links = ", ".join(f"[{name}](runbooks.md#{name.lower()})" for name in panel.alerts)
    return f"{panel.description} Alerts: {links}." if links else panel.description
