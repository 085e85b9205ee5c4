"""A histogram whose observations come counted by bucket, many at a time.

prometheus_client observes one value at a time, which costs a microsecond. A request with a thousand tokens has a
thousand gaps between them, which are counted as they come (router/session/timing.py) and given here at its end.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString


class CountedHistogram:
    """To be used from one thread, as the event loop of a replica."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str],
        buckets: Sequence[float],
        registry: CollectorRegistry | None = REGISTRY,
    ) -> None:
        """`buckets`: upper bounds, in ascending order. There is one bucket more, for what is above the last bound."""
        self._name, self._documentation = name, documentation
        self._labelnames = tuple(labelnames)
        self._bounds = [*map(floatToGoString, buckets), "+Inf"]
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        if registry is not None:
            registry.register(self)

    def add(self, labels: tuple[str, ...], counts: Sequence[int], total: float) -> None:
        """Add observations. `counts`: how many are in each bucket; `total`: their sum."""
        known = self._counts.get(labels)
        if known is None:
            known = self._counts[labels] = [0] * len(self._bounds)
        for bucket, count in enumerate(counts):
            known[bucket] += count
        self._sums[labels] = self._sums.get(labels, 0.0) + total

    def describe(self) -> list[HistogramMetricFamily]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        (family,) = self.describe()
        for labels, counts in self._counts.items():
            buckets = list(zip(self._bounds, map(float, accumulate(counts)), strict=True))
            family.add_metric(labels, buckets, self._sums[labels])
        yield family
