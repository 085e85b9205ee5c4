"""The goals of bench/tenants_cost.py. Pure."""

from bench.goals.verdict import above

MOST_ADDED_MS = 0.3
"""Milliseconds that identity and limits add to the median latency of a request. A higher goal accepts a slower service;
a lower one fails on slower cores.
"""


def missed(added_s: float) -> list[str]:
    return above("latency that identity and limits add", 1e3 * added_s, MOST_ADDED_MS, " ms")
