"""The registry of one process, and the page of all processes.

An ingress replica that is scraped collects the registries of all replicas, adds the labels `deployment` and `replica`,
and renders one page.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from cluster.messages.ids import CellName
from cluster.metrics import engines, handoffs, network, quality, requests, safety, scaling, scheduler, tenants

SUBJECTS = (requests, scheduler, engines, handoffs, scaling, tenants, safety, network, quality)
"""The modules of the table. Every process has all metrics, also those that it does not count."""


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One sample of a metric."""

    name: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    """One metric of one process."""

    name: str
    documentation: str
    type: str
    samples: list[MetricSample]


class Scrape(msgspec.Struct, frozen=True):
    """The registry of one process."""

    deployment: str
    replica: str
    families: list[Family]
    cell: CellName | None = None
    """The cell of the process, if there are several. An ingress replica belongs to none."""


def scrape(deployment: str, replica: str) -> Scrape:
    """The registry of this process."""
    families = [
        Family(m.name, m.documentation, m.type, [MetricSample(s.name, dict(s.labels), s.value) for s in m.samples])
        for m in REGISTRY.collect()
    ]
    return Scrape(deployment, replica, families)


def render(scrapes: Iterable[Scrape], num_missing: Mapping[str, int] | None = None) -> bytes:
    """The Prometheus page of all processes. Metrics of one name are merged; the labels `deployment` and `replica` tell
    their samples apart, and `cell` the cells if there are several.

    `num_missing` is the number of replicas without a scrape, by deployment.
    """
    return generate_latest(_Merged(scrapes, num_missing or {}))


class _Merged:
    def __init__(self, scrapes: Iterable[Scrape], num_missing: Mapping[str, int]) -> None:
        self._scrapes = scrapes
        self._num_missing = num_missing

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for one in self._scrapes:
            labels = {"deployment": one.deployment, "replica": one.replica}
            labels |= {"cell": one.cell} if one.cell is not None else {}
            for family in one.families:
                metric = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    metric.add_sample(sample.name, {**sample.labels, **labels}, sample.value)
        if self._num_missing:
            merged["baton_scrape_missing"] = self._missing()
        return iter(merged.values())

    def _missing(self) -> Metric:
        family = GaugeMetricFamily(
            "baton_scrape_missing",
            "Replicas whose metrics are missing on this page because they did not answer in time; 1 if the number of "
            "replicas is not known.",
            labels=["deployment"],
        )
        for deployment, number in self._num_missing.items():
            family.add_metric([deployment], number)
        return family
