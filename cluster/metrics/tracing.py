"""Metrics of traces, counted by ingress replicas."""

from prometheus_client import Counter

TRACES = Counter(
    "baton_traces",
    "Requests that were chosen for export as traces, by what became of them: exported; queue_full: dropped because "
    "earlier ones were not exported yet; undelivered: dropped because the collector was away or too slow; refused: the "
    "collector did not take them.",
    ["result"],
)
