"""Metrics of the autoscaler."""

from prometheus_client import Gauge

POOL_WANTED = Gauge("baton_pool_wanted", "Workers that the expected load needs, by pool.", ["pool"])
POOL_TARGET = Gauge(
    "baton_pool_target",
    "Workers that Serve is asked for, by pool: more than wanted while workers are emptied.",
    ["pool"],
)
RETIRING = Gauge("baton_retiring_workers", "Workers that are used last, because they will be stopped.")
EXPECTED_REQUESTS = Gauge(
    "baton_expected_requests_per_second", "Requests that are expected when a worker that is ordered now is ready."
)
SCALING_CORRECTION = Gauge(
    "baton_scaling_correction", "Workers that turned out to be needed for each one that the latency models ask for."
)
