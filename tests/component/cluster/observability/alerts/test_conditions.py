"""Each alert on series that are made for it (`cases/`): when it must fire, and when it must not."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cluster.observability.alerts.alert import AlertGroup
from cluster.observability.alerts.rules import rules
from cluster.observability.alerts.table import GROUPS
from tests.component.cluster.observability.alerts.cases import events, requests, service, workers
from tests.component.cluster.observability.alerts.cases.notation import UP, Case
from tests.component.monitoring import check_rules

CASES = requests.CASES | workers.CASES | service.CASES | events.CASES


def unit_test(case: Case) -> dict[str, Any]:
    given = list(case.series)
    if not any(name.startswith(("up{", "something_else")) for name, _ in given):
        given.append(UP)
    return {
        "name": case.what,
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in given],
        "promql_expr_test": list(questions(case.fires)),
    }


def questions(fires: dict[int, set[str]]) -> Iterable[dict[str, Any]]:
    for minute, names in fires.items():
        yield {
            "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
        }


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_alerts_fire_when_they_must_and_others_of_their_group_do_not(group: AlertGroup, tmp_path: Path) -> None:
    """All groups together take ten times as long. They are together in `test_monitoring.py`."""
    (tmp_path / "rules.yml").write_text(rules([group], "docs"))
    without = [alert.name for alert in group.alerts if not CASES.get(alert.name)]
    assert not without, f"write cases for {without} in tests/component/cluster/observability/alerts/cases/"
    cases = [case for alert in group.alerts for case in CASES[alert.name]]
    check_rules(tmp_path, [unit_test(case) for case in cases], tmp_path / "rules.yml")
