"""The goals of bench/scheduler/load.py. Pure."""

from bench.goals.verdict import above, below

MOST_CPUS = 0.3
"""CPUs that the reports of 1,000 workers may take beside 60,000 open requests."""
LEAST_PER_S = 5_000.0
"""Placements per second beside these reports."""
MOST_P99_MS = 2.0
"""Latency of such a placement at p99."""
MOST_REFUSAL_SHARE = 1.0
"""CPU time of a refusal at three times of what fits, as a multiple of that of a placement without overload."""


def missed(busy: float, placed_per_s: float, p99_ms: float, refusal_share: float) -> list[str]:
    """`busy`: CPUs."""
    return [
        *above("reports beside open requests", busy, MOST_CPUS, " CPUs"),
        *below("placements", placed_per_s, LEAST_PER_S, "/s"),
        *above("latency of a placement at p99", p99_ms, MOST_P99_MS, " ms"),
        *above("CPU time of a refusal", refusal_share, MOST_REFUSAL_SHARE, " placements"),
    ]
