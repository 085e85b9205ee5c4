"""The goal of bench/request_cost.py. Pure."""

from collections.abc import Mapping

from bench.goals.verdict import above

MOST_MS = 1.0
"""CPU milliseconds to render, tokenize, hash and place a chat of some 500 tokens: 1,000 requests a second and core of
the front before any engine. 0.75 to 0.77 are measured. A higher goal accepts a dearer request; a lower one fails on
slower cores.
"""


def missed(parts_s: Mapping[str, float]) -> list[str]:
    return above("a request before an engine sees it", 1e3 * sum(parts_s.values()), MOST_MS, " ms")
