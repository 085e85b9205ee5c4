"""The files in `conf/` are those of the tables, and the programs that read them accept them."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from cluster.metrics.page import render, scrape
from cluster.observability.__main__ import generated
from cluster.observability.alerts.alert import JOB
from cluster.observability.panels.panel import plain
from cluster.observability.panels.table import SUBJECTS
from cluster.repository import REPO_ROOT
from tests.component.monitoring import RULES, run_tool

CONF = REPO_ROOT / "conf"


@pytest.mark.parametrize("file", generated(), ids=lambda file: file.name)
def test_generated_file_is_current(file: Path) -> None:
    assert file.read_text() == generated()[file], "run `python -m cluster.observability`"


def test_prometheus_takes_the_rules() -> None:
    run_tool("promtool", "check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_prometheus_takes_its_settings(tmp_path: Path) -> None:
    for file in (RULES, CONF / "prometheus/prometheus.yml"):
        (tmp_path / "conf/prometheus").mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf/prometheus" / file.name).write_text(file.read_text())
    (tmp_path / ".baton/data").mkdir(parents=True)
    (tmp_path / ".baton/data/admin-key").write_text("baton-admin-of-a-test")
    run_tool("promtool", "check", "config", tmp_path / "conf/prometheus/prometheus.yml")
    (job,) = yaml.safe_load((CONF / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert job["job_name"] == JOB


def test_alertmanager_takes_its_settings() -> None:
    run_tool("amtool", "check-config", CONF / "alertmanager/alertmanager.yml")


def test_prometheus_takes_the_query_of_each_panel(tmp_path: Path) -> None:
    recorded = [
        {"record": f"panel:{number}", "expr": plain(query)}
        for number, query in enumerate(
            curve.query for subject in SUBJECTS for panel in subject.panels for curve in panel.curves
        )
    ]
    file = tmp_path / "panels.rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    run_tool("promtool", "check", "rules", file)


def test_prometheus_reads_the_page() -> None:
    """The names of vLLM's own metrics, which may be there, are not for us to choose."""
    own = scrape("ingress", "a")
    families = [family for family in own.families if not family.name.startswith("vllm:")]
    page = render([msgspec.structs.replace(own, families=families)], {"Scheduler": 0})
    assert "error while linting" not in run_tool("promtool", "check", "metrics", "--extended", stdin=page)


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CONF / "kuberay" / file).read_text()))


def test_kubernetes_scrapes_the_admin_port_of_the_ingress_pods_with_the_key() -> None:
    service, policy, scraped = documents("monitoring.yaml")
    ray = documents("rayservice.yaml")[0]["spec"]
    groups = ray["rayClusterConfig"]["workerGroupSpecs"]
    labels = next(group["template"]["metadata"]["labels"] for group in groups if group["groupName"] == "ingress")
    admin = yaml.safe_load(ray["serveConfigV2"])["applications"][0]["args"]["admin"]["port"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert [port["targetPort"] for port in service["spec"]["ports"]] == [admin]
    assert [port["port"] for port in policy["spec"]["ingress"][0]["ports"]] == [admin]
    metadata, spec = service["metadata"], scraped["spec"]
    assert spec["staticConfigs"] == [{"targets": [f"{metadata['name']}.{metadata['namespace']}.svc:{admin}"]}]
    assert spec["relabelings"] == [{"targetLabel": "job", "replacement": JOB}]
    key = spec["authorization"]["credentials"]
    environment = (CONF / "kuberay/cluster.env.example").read_text()
    assert key["name"] == "baton" and re.search(rf"(?m)^{key['key']}=", environment)
