"""What all modules of metrics share."""

from prometheus_client import disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms' buckets, in seconds."""
