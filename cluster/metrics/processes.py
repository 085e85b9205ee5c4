"""Metrics of processes: their event loops, and the connections between them."""

from collections.abc import Iterator

from prometheus_client import REGISTRY, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.metrics.buckets import LATENCY_BUCKETS_S
from cluster.network.certificates import own_certificates
from cluster.network.strangers import STRANGERS

LOOP_LAG = Histogram(
    "baton_event_loop_lag_seconds",
    "Seconds for which what comes to this process waits until its event loop takes it: how late a task is woken that "
    "sleeps for half a second. Further half seconds that pass while the loop is blocked count, too.",
    buckets=(0.001, 0.002, *LATENCY_BUCKETS_S),
)


class _StrangersCollector:
    """Exports the counts of cluster/network/strangers.py, which does not know Prometheus."""

    def describe(self) -> list[CounterMetricFamily]:
        return [
            CounterMetricFamily(
                "baton_strangers",
                "Connections and messages that were dropped because their sender does not belong to the cluster.",
                labels=["socket", "reason"],
            )
        ]

    def collect(self) -> Iterator[Metric]:
        (family,) = self.describe()
        for (socket, reason), number in STRANGERS.counts().items():
            family.add_metric([socket, reason], number)
        yield family


class _CertificateCollector:
    """Exports when the certificate of this process ends, if its connections are encrypted."""

    def describe(self) -> list[GaugeMetricFamily]:
        return [
            GaugeMetricFamily(
                "baton_certificate_expires_seconds",
                "Unix time at which the certificate ends that this process uses for new connections (network.tls).",
                labels=[],
            )
        ]

    def collect(self) -> Iterator[Metric]:
        if (own := own_certificates()) is not None:
            (family,) = self.describe()
            family.add_metric([], own.contexts().expires_at)
            yield family


STRANGERS_COUNTED = _StrangersCollector()
CERTIFICATE = _CertificateCollector()
REGISTRY.register(STRANGERS_COUNTED)
REGISTRY.register(CERTIFICATE)
