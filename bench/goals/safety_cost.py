"""The goals of bench.safety.cost."""

from collections.abc import Mapping, Sequence

from bench.goals.verdict import above

MOST_US = 60.0
"""CPU time of all stages but the guard per generated token, in microseconds, on a slow core: with 1,000 tokens/s of a
replica's streams, 6 % of its CPU.
"""
MOST_WORDS = 2.0
"""What the screening may add to the TTFT at p50, and to the gaps at p99, in words: one is held until it ends, and a
second one where it begins like a term.
"""
MOST_BLOCKED = 0.001
"""Share of the demo model's chats that may be blocked."""


def missed(
    costs: Mapping[str, float], times: Mapping[str, Sequence[float]], shares: Mapping[str, float], word_ms: float
) -> list[str]:
    """`word_ms`: the time in which a word comes, in milliseconds."""
    added = [(on - off) / word_ms for on, off in zip(times["on"], times["off"], strict=True)]
    return [
        *above("all stages per token", costs["all three"], MOST_US, " us"),
        *above("added TTFT at p50", added[0], MOST_WORDS, " words"),
        *above("added gap at p99", added[3], MOST_WORDS, " words"),
        *above("demo chats blocked", shares["blocked"], MOST_BLOCKED),
    ]
