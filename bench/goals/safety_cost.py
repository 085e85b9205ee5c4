"""The goals of bench.safety.cost."""

from collections.abc import Mapping, Sequence

from bench.goals.verdict import above

MOST_US = 40.0
"""CPU time of all stages but the guard per generated token, in microseconds. At 1,000 tokens/s of a replica's streams,
40 us are 4 % of its CPU.
"""
MOST_TTFT_MS = 20.0
"""What the screening may add to the TTFT at p50, in milliseconds: about one token, for the word that is held back."""
MOST_GAP99_MS = 25.0
"""What the screening may add to the gaps at p99, in milliseconds: about one token, for words of several tokens."""
MOST_BLOCKED = 0.001
"""Share of the demo model's chats that may be blocked."""


def missed(costs: Mapping[str, float], times: Mapping[str, Sequence[float]], shares: Mapping[str, float]) -> list[str]:
    added = [on - off for on, off in zip(times["on"], times["off"], strict=True)]
    return [
        *above("all stages per token", costs["all three"], MOST_US, " us"),
        *above("added TTFT at p50", added[0], MOST_TTFT_MS, " ms"),
        *above("added gap at p99", added[3], MOST_GAP99_MS, " ms"),
        *above("demo chats blocked", shares["blocked"], MOST_BLOCKED),
    ]
