"""Rules for each metric of the table: it counts something, and its labels are bounded."""

import pkgutil
import re
from importlib import import_module

import pytest

import cluster.metrics
from cluster.metrics import page, reference
from cluster.metrics.reference import Described, described
from cluster.repository import REPO_ROOT

METRICS = {attribute: metric for subject in page.SUBJECTS for attribute, metric in described(subject)}
PACKAGES = ("api", "cluster", "decode", "kvtransfer", "prefill", "router")
COUNTS_ITSELF = {"CERTIFICATE", "STRANGERS_COUNTED"}
"""Collectors, which read what they show when they are asked."""
CHANGES = {"add", "clear", "dec", "inc", "labels", "observe", "set", "set_function"}

OF_A_FEW_WORDS = {
    "action", "answer", "code", "counted", "credential", "decision", "deployment", "direction", "how", "kind", "of",
    "origin", "outcome", "part", "path", "pool", "reason", "result", "role", "slo_class", "socket", "source", "stage",
    "state", "step", "why",
}  # fmt: skip
"""Labels whose values stand in the code. `kind` is of tokens, or of engines, which are as many as there are types of
nodes; `deployment` is of the application.
"""
BOUNDED = {
    "cell": "the config names the cells",
    "tenant": "metrics.max_tenants (tests/unit/api/metering/test_tenant_counts.py)",
    "worker": "those that live now (tests/component/router/test_export.py), or 4096 (cluster/step_stream/unread.py)",
    "prefill": "the slowest links (tests/component/router/test_export.py), or kinds of engines",
    "decode": "decode workers that live now, or kinds of engines",
    "ingress": "the longest holds (tests/component/router/test_export.py)",
}
"""Labels whose values come and go, and what bounds them."""


def changed() -> set[str]:
    """The metrics that some module sets, counts or observes."""
    change = re.compile(rf"\b([A-Z][A-Z_]+)\s*\.(?:{'|'.join(CHANGES)})\b")
    files = (file for package in PACKAGES for file in (REPO_ROOT / package).rglob("*.py"))
    return {name for file in files for name in change.findall(file.read_text())}


def test_each_module_with_metrics_is_a_subject_of_the_table() -> None:
    """A metric of any other module is on the page, and neither in docs/metrics.md nor checked here."""
    names = [module.name for module in pkgutil.iter_modules(cluster.metrics.__path__, "cluster.metrics.")]
    with_metrics = {name for name in names if dict(described(import_module(name)))}
    missing = with_metrics - {subject.__name__ for subject in page.SUBJECTS}
    assert not missing, f"add these modules to SUBJECTS of cluster/metrics/page.py: {sorted(missing)}"


def test_each_metric_counts_something() -> None:
    assert METRICS.keys() - changed() - COUNTS_ITSELF == set()


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_labels_of_a_metric_are_bounded(metric: Described) -> None:
    assert set(metric.labels) <= OF_A_FEW_WORDS | BOUNDED.keys()
    assert "model" not in metric.labels, "the page adds it"


def test_names_say_the_unit() -> None:
    of_time = [metric.name for metric in METRICS.values() if metric.meaning.startswith("Seconds")]
    assert [name for name in of_time if not name.endswith("_seconds")] == []


def test_page_of_the_docs_is_current() -> None:
    written = reference.PAGE.read_text()
    assert reference.updated(written) == written, "run python -m cluster.metrics.reference"
