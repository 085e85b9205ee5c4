"""Metrics of connections between the processes of the cluster."""

from collections.abc import Iterator

from prometheus_client import REGISTRY
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from cluster.network.certificates import own_certificates
from cluster.network.strangers import STRANGERS


class _StrangersCollector:
    """Exports the counts of cluster/network/strangers.py, which does not know Prometheus."""

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "baton_strangers",
            "Connections and messages that were dropped because their sender does not belong to the cluster.",
            labels=["socket", "reason"],
        )
        for (socket, reason), number in STRANGERS.counts().items():
            family.add_metric([socket, reason], number)
        return iter([family])


REGISTRY.register(_StrangersCollector())


class _CertificateCollector:
    """Exports when the certificate of this process ends, if its connections are encrypted."""

    def collect(self) -> Iterator[Metric]:
        if (own := own_certificates()) is not None:
            yield GaugeMetricFamily(
                "baton_certificate_expires_seconds",
                "Unix time at which the certificate ends that this process uses for new connections (network.tls).",
                own.contexts().expires_at,
            )


REGISTRY.register(_CertificateCollector())
