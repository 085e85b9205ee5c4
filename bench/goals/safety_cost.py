"""The goals of bench.safety.cost."""

from collections.abc import Mapping
from typing import NamedTuple

from bench.goals.verdict import above, below

MOST_US = 60.0
"""CPU time of all stages but the guard per generated token, in microseconds, on a slow core: with 1,000 tokens/s of a
replica's streams, 6 % of its CPU.
"""
MOST_PROMPT_MS = {"60 words": 15.0, "1000 words": 250.0}
"""CPU time of the screening of a new request, in milliseconds, on a slow core."""
MOST_AGAIN = 0.2
"""CPU time of a request all of whose texts have passed before, against that of a new one of 1,000 words."""
MOST_WORDS = 2.0
"""What the stages but the guard may add to the TTFT at p50, and to the gaps at p99, in words: one is held until it
ends, and a second one where it begins like a term.
"""
MOST_WINDOWS = 1.25
"""What a guard that holds back may add to the TTFT at p50, and to an answer's longest gap, beside its own time, in
windows of an ordinary length: one, and what the longest one has more.
"""
MOST_SLOWEST = 2.0
"""The same of an answer's longest gap at p99, in windows of an ordinary length: text without spaces has many tokens."""
MOST_CALLS = 1.05
"""Calls of a guard that always runs, per window of an answer and per prompt."""
MOST_BLOCKED = 0.001
"""Share of the demo model's chats that may be blocked."""


class Measured(NamedTuple):
    """Of the streams of one side. In milliseconds."""

    ttft: float
    ttft99: float
    gap: float
    gap99: float
    longest: float
    """The longest gap of an answer, at p50."""
    longest99: float
    calls: float
    """Of the guard, per request."""


class Pace(NamedTuple):
    """How fast things come, in milliseconds."""

    word_ms: float
    window_ms: float
    guard_ms: float
    num_windows: float
    """Of an answer. Each is to be judged, and the prompt."""


def missed(
    costs: Mapping[str, Mapping[str, float]], times: Mapping[str, Measured], shares: Mapping[str, float], pace: Pace
) -> list[str]:
    """`costs`: in microseconds, by what is read and by stage."""
    prompts = {name: costs[name]["request"] / 1e3 for name in MOST_PROMPT_MS}
    again = costs["1000 words"]["again"] / costs["1000 words"]["request"]
    return [
        *above("all stages per token", costs["token"]["all three"], MOST_US, " us"),
        *(line for name, ms in prompts.items() for line in above(f"{name} read", ms, MOST_PROMPT_MS[name], " ms")),
        *above("1000 words read again, against new ones", again, MOST_AGAIN),
        *_of_stages(times, pace),
        *_of_guard(times, pace),
        *above("demo chats blocked", shares["blocked"], MOST_BLOCKED),
    ]


def _of_stages(times: Mapping[str, Measured], pace: Pace) -> list[str]:
    off, on = times["off"], times["no guard"]
    return [
        *above("added TTFT at p50", (on.ttft - off.ttft) / pace.word_ms, MOST_WORDS, " words"),
        *above("added gap at p99", (on.gap99 - off.gap99) / pace.word_ms, MOST_WORDS, " words"),
    ]


def _of_guard(times: Mapping[str, Measured], pace: Pace) -> list[str]:
    """Against all stages but the guard, in the same run."""
    on, doubt, always, live = (times[name] for name in ("no guard", "in doubt", "always", "live"))
    held_ms, slowest_ms = (windows * pace.window_ms + pace.guard_ms for windows in (MOST_WINDOWS, MOST_SLOWEST))
    words_ms = MOST_WORDS * pace.word_ms
    texts = pace.num_windows + 1
    return [
        *above("guard always: added TTFT at p50", always.ttft - on.ttft, held_ms, " ms"),
        *above("guard always: longest gap at p50", always.longest, held_ms, " ms"),
        *above("guard always: longest gap at p99", always.longest99, slowest_ms, " ms"),
        *above("guard always: calls per text", always.calls / texts, MOST_CALLS),
        *below("guard always: calls per text", always.calls / texts, 1 / MOST_CALLS),
        *above("guard in doubt: added TTFT at p50", doubt.ttft - on.ttft, words_ms, " ms"),
        *above("guard in doubt: longest gap at p99", doubt.longest99, slowest_ms, " ms"),
        *above("guard in doubt: calls", doubt.calls, always.calls / 2),
        *above("guard live: added TTFT at p50", live.ttft - on.ttft, pace.guard_ms + words_ms, " ms"),
        *above("guard live: added gap at p99", live.gap99 - on.gap99, words_ms, " ms"),
        *below("guard live: calls", live.calls, always.calls),
    ]
