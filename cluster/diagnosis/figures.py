"""Figures: what a page of metrics says, for rules that ask for sums. Pure.

The page is text of Prometheus. It may be of a service of another version, so a metric that is missing is 0, and a line
that cannot be read is left out.
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Self

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \S+)?\Z")
_LABEL = re.compile(r' *+(\w++)="((?:[^"\\]|\\.)*+)" *+(?:,|\Z)')
MOST_LINE_CHARS = 8192
"""Characters of the longest line that is read. A line of Baton's has some hundred. More reads longer what is no page
of metrics; fewer leaves out figures with long labels.
"""
Labels = frozenset[tuple[str, str]]
Sample = tuple[str, Labels]
"""The name of a sample, and its labels."""


class Figures:
    def __init__(self, samples: Mapping[Sample, float]) -> None:
        self._samples = dict(samples)
        self._by_name: dict[str, list[tuple[Labels, float]]] = {}
        for (name, labels), value in self._samples.items():
            self._by_name.setdefault(name, []).append((labels, value))

    @classmethod
    def of(cls, page: str) -> Self:
        """The figures of a page."""
        samples: dict[Sample, float] = {}
        for line in page.splitlines():
            found = None if line.startswith("#") or len(line) > MOST_LINE_CHARS else _LINE.match(line)
            if found is None:
                continue
            labels, value = _labels(found[2] or ""), _number(found[3])
            if labels is not None and value is not None:
                samples[found[1], labels] = value
        return cls(samples)

    def has(self, name: str) -> bool:
        return name in self._by_name

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name with these labels."""
        wanted = labels.items()
        return sum(value for known, value in self._by_name.get(name, ()) if wanted <= known)

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The sums by the value of a label, the largest first. Sums of 0 are left out."""
        sums: dict[str, float] = {}
        wanted = labels.items()
        for known, value in self._by_name.get(name, ()):
            if wanted <= known and (one := dict(known).get(label)) is not None:
                sums[one] = sums.get(one, 0.0) + value
        return {one: value for one, value in sorted(sums.items(), key=lambda item: -item[1]) if value}

    def since(self, earlier: "Figures") -> "Figures":
        """What counters have counted since an earlier page. A counter that began anew meanwhile counts from 0; gauges
        keep their values.
        """
        return Figures(
            {
                sample: _growth(value, earlier._samples.get(sample, 0.0)) if _is_counter(sample[0]) else value
                for sample, value in self._samples.items()
            }
        )


def _is_counter(name: str) -> bool:
    return name.endswith(("_total", "_sum", "_count", "_bucket"))


def _growth(now: float, before: float) -> float:
    return now - before if now >= before else now


def _labels(text: str) -> Labels | None:
    """None for a text that is no list of labels. It is read once, from its begin to its end."""
    labels, place = list[tuple[str, str]](), 0
    while place < len(text):
        found = _LABEL.match(text, place)
        if found is None:
            return None
        labels.append((found[1], found[2]))
        place = found.end()
    return frozenset(labels)


def _number(text: str) -> float | None:
    """None for a text that is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
