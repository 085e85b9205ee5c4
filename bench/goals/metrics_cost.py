"""The goals of bench/metrics_cost.py. Pure."""

from bench.goals.verdict import above

MOST_OF_SESSION = 0.25
"""What metrics of a request and of its tokens may take, as a share of the session that they belong to. A higher goal
accepts dearer metrics; a lower one follows chance on shared cores.
"""
MOST_SECONDS = 2.0
"""CPU seconds to join the page of a thousand workers: a fifth of Prometheus' usual time for a scrape. A higher goal
accepts a page that a busy replica gives too late; a lower one fails on slower cores.
"""
MOST_MB = 100.0
"""Megabytes of that page. A higher goal accepts more series of each worker; a lower one leaves no room for new ones."""


def missed(share: float, joined_s: float, num_bytes: int) -> list[str]:
    return [
        *above("metrics of a request, as a share of its session", share, MOST_OF_SESSION),
        *above("a page of a thousand workers", joined_s, MOST_SECONDS, " s"),
        *above("a page of a thousand workers", num_bytes / 1e6, MOST_MB, " MB"),
    ]
