import yaml

from cluster.observability.alerts.alert import Alert, AlertGroup, Recording, Severity
from cluster.observability.alerts.rules import rules
from cluster.observability.alerts.table import ALERTS, GROUPS

SLOW = Alert(
    name="Slow",
    condition="up == 0\nor absent(up)",
    for_="5m",
    severity=Severity.PAGE,
    summary='"{{ $labels.model }}": slow',
    description="Too slow: 1 s.",
)


def test_rules_are_yaml_with_what_the_table_has() -> None:
    group = AlertGroup(name="g", recordings=(Recording(name="a:b:c", query="sum(up)"),), alerts=(SLOW,))
    assert yaml.safe_load(rules([group], "https://example.com/docs")) == {
        "groups": [
            {
                "name": "g",
                "rules": [
                    {"record": "a:b:c", "expr": "sum(up)\n"},
                    {
                        "alert": "Slow",
                        "expr": "up == 0\nor absent(up)\n",
                        "for": "5m",
                        "labels": {"severity": "page"},
                        "annotations": {
                            "summary": '"{{ $labels.model }}": slow',
                            "description": "Too slow: 1 s.",
                            "runbook_url": "https://example.com/docs/runbooks.md#slow",
                        },
                    },
                ],
            }
        ]
    }


def test_names_are_unique() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    recordings = [recording.name for group in GROUPS for recording in group.recordings]
    assert len(set(recordings)) == len(recordings)


def test_recordings_are_used_by_their_own_group() -> None:
    """Groups are evaluated beside each other, so that another group would read an older value."""
    for group in GROUPS:
        queries = [alert.condition for alert in group.alerts] + [recording.query for recording in group.recordings]
        assert [r.name for r in group.recordings if not any(r.name in query for query in queries)] == []
        others = [r.name for other in GROUPS if other is not group for r in other.recordings]
        assert [name for name in others if any(name in query for query in queries)] == []
