"""Metrics of the page itself."""

from prometheus_client import Gauge

MISSING = Gauge(
    "baton_scrape_missing",
    "Replicas whose metrics are missing on this page because they did not answer in time; 1 if the number of replicas "
    "is not known.",
    ["deployment"],
    registry=None,
)
"""Set by the replica that gives the page, and not a metric of each process."""
