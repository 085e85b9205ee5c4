"""Writes the reference of Baton's metrics into docs/metrics.md, from the table.

python -m cluster.metrics.reference
"""

from collections.abc import Iterator
from types import ModuleType

import msgspec

from cluster.metrics.page import OWN, SUBJECTS
from cluster.repository import REPO_ROOT

PAGE = REPO_ROOT / "docs/metrics.md"
HEADING = "## All metrics\n"
"""What is after this heading of the page is written here. What is before it is written by hand."""
_UNITS = {
    "seconds": "s",
    "bytes": "bytes",
    "tokens": "tokens",
    "requests": "requests",
    "nats": "nats",
    "ratio": "ratio",
    "error": "ratio",
    "bytes_per_second": "bytes/s",
    "requests_per_second": "requests/s",
}
"""The units of metrics, by the last words of their names. Others are plain numbers."""


class Described(msgspec.Struct, frozen=True):
    """A metric of the table."""

    name: str
    """As it is on the page: a counter with its suffix, a histogram without one."""
    type: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def unit(self) -> str:
        words = self.name.removesuffix("_total").split("_")
        found = (_UNITS.get("_".join(words[first:])) for first in range(len(words)))
        return next((unit for unit in found if unit), "number")


def described(subject: ModuleType) -> Iterator[tuple[str, Described]]:
    """The metrics of a module, each with the name that it has there."""
    for attribute, metric in vars(subject).items():
        if isinstance(metric, type) or not hasattr(metric, "describe"):
            continue
        (family,) = metric.describe()
        labels = getattr(metric, "_labelnames", getattr(family, "_labelnames", ()))
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield attribute, Described(name, family.type, tuple(labels), family.documentation)


def text() -> str:
    """The generated part of the page."""
    parts = [
        HEADING,
        "`python -m cluster.metrics.reference` writes this part from the modules of `cluster/metrics/`. Every series\n"
        "also has the labels `model`, `deployment` and `replica`, and `cell` if there are several.\n",
    ]
    for subject in SUBJECTS:
        first, _, _ = (subject.__doc__ or "").partition("\n")
        rows = [_row(metric) for _, metric in described(subject) if metric.name.startswith(OWN)]
        title = first.removeprefix("Metrics of ").partition(":")[0].rstrip(".")
        parts.append(f"### {title[0].upper()}{title[1:]}\n")
        parts.append("\n".join(["| metric | type | labels | unit | meaning |", "|---|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def updated(page: str) -> str:
    """The page with the part that is generated now."""
    by_hand, _, _ = page.partition(HEADING)
    return by_hand + text()


def _row(metric: Described) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    meaning = metric.meaning.replace("|", r"\|")
    return f"| `{metric.name}` | {metric.type} | {labels} | {metric.unit} | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
