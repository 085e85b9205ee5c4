"""The registry of one process, and the page of all processes.

An ingress replica that is scraped collects the registries of all replicas, and joins them to one page. Each process
renders its own series, and leaves a mark where the labels of the process belong: `deployment`, `replica`, `cell`, and
for Baton's own metrics `model`. So a page of a thousand workers costs the replica that gives it a copy of the text, and
not the work of all processes (bench/metrics_cost.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from cluster.messages.ids import CellName
from cluster.metrics import (
    engines,
    handoffs,
    processes,
    quality,
    requests,
    safety,
    scaling,
    scheduler,
    scrapes,
    tenants,
    tracing,
)

SUBJECTS = (requests, scheduler, engines, handoffs, scaling, tenants, safety, quality, processes, tracing, scrapes)
"""The modules of the table. Every process has all metrics, also those that it does not count."""
OWN = "baton_"
"""What the names of Baton's own metrics begin with."""
_MARK = b"\0"
"""Stands in a rendered series for the labels of its process. No label value has it."""


class Family(msgspec.Struct, frozen=True, array_like=True):
    """One metric of one process, as it is on the page."""

    name: str
    header: bytes
    """The lines that say what the metric means and of which type it is."""
    series: bytes
    """A line for each series, with a mark for the labels of the process."""


class Scrape(msgspec.Struct, frozen=True):
    """The registry of one process."""

    deployment: str
    replica: str
    families: list[Family]
    cell: CellName | None = None
    """The cell of the process, if there are several. An ingress replica belongs to none."""

    def values(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of each series with this name, as the page has the name."""
        for family in self.families:
            if name.startswith(family.name):
                text = _with(b"", family.series).decode()
                samples = (each for parsed in text_string_to_metric_families(text) for each in parsed.samples)
                yield from ((sample.labels, sample.value) for sample in samples if sample.name == name)


def scrape(deployment: str, replica: str) -> Scrape:
    """The registry of this process."""
    return Scrape(deployment, replica, [family_of(metric) for metric in REGISTRY.collect()])


def family_of(metric: Metric) -> Family:
    """A metric as it is on the page, in Prometheus' text format 0.0.4."""
    name, kind = metric.name, metric.type
    shown = f"{name}_total" if kind == "counter" else name
    kind = "untyped" if kind == "unknown" else kind
    documentation = metric.documentation.replace("\\", r"\\").replace("\n", r"\n")
    header = f"# HELP {shown} {documentation}\n# TYPE {shown} {kind}\n"
    lines = [f"{sample.name}{{{_shown(sample.labels)}\0}} {_number(sample.value)}\n" for sample in metric.samples]
    return Family(name, header.encode(), "".join(lines).encode())


def render(given: Iterable[Scrape], num_missing: Mapping[str, int] | None = None, *, model: str = "") -> bytes:
    """The Prometheus page of all processes. Metrics of one name are merged; the labels `deployment` and `replica` tell
    their series apart, and `cell` the cells if there are several. `model`: the name of the served model, a label of
    Baton's metrics if it is not empty. `num_missing`: the number of replicas without a scrape, by deployment.
    """
    merged: dict[str, list[bytes]] = {}
    for one in given:
        labels = {"deployment": one.deployment, "replica": one.replica}
        labels |= {"cell": one.cell} if one.cell is not None else {}
        of_others = _of_process(labels)
        of_own = _of_process(labels | _labels_of(model))
        for family in one.families:
            text = merged.setdefault(family.name, [family.header])
            text.append(_with(of_own if family.name.startswith(OWN) else of_others, family.series))
    if num_missing:
        family = family_of(_missing(num_missing))
        merged[family.name] = [family.header, _with(_of_process(_labels_of(model)), family.series)]
    return b"".join(chain.from_iterable(merged.values()))


def _missing(numbers: Mapping[str, int]) -> Metric:
    scrapes.MISSING.clear()
    for deployment, number in numbers.items():
        scrapes.MISSING.labels(deployment).set(number)
    (metric,) = scrapes.MISSING.collect()
    return metric


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _with(labels: bytes, series: bytes) -> bytes:
    """Series with the labels of their process."""
    return series.replace(_MARK, labels) if labels else series.replace(b"," + _MARK, b"").replace(_MARK, b"")


def _labels_of(model: str) -> dict[str, str]:
    return {"model": model} if model else {}


def _shown(labels: Mapping[str, str]) -> str:
    """Each label with a comma behind it."""
    return "".join(f'{name}="{_escaped(value)}",' for name, value in labels.items())


def _of_process(labels: Mapping[str, str]) -> bytes:
    return _shown(dict(sorted(labels.items()))).removesuffix(",").encode()


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"").replace("\0", "")
