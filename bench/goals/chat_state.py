"""The goals of bench/chat_state.py: relative to what nothing is remembered of, in the same run. Pure."""

from collections.abc import Mapping, Sequence

from bench.goals.verdict import above, below
from bench.turns.added_ttft import Added
from bench.turns.long_conversation import FITTED, NAIVE, Summary
from bench.turns.turn_cost import Cost

MOST_ADDED_MS = 25.0
"""Milliseconds that storing a turn adds to the median TTFT of a lone stream; the lower end of the interval counts.
9.3 is measured. A higher goal accepts slower transactions; a lower one fails on slower disks.
"""
MOST_INGRESS_RATIO = 4.0
"""CPU time of the ingress for a stored turn relative to a stateless one. 2.4 is measured. A higher goal accepts dearer
turns; a lower one fails in noise.
"""
MOST_COMPUTED_RATIO = 0.5
"""Tokens that a turn of the long conversation has computed, relative to a client that drops its oldest turn. 0.24 is
measured. At 1 a fitted conversation is worth nothing; a lower goal fails in small windows.
"""
LEAST_KNOWN = 0.9
"""Share of the conversation that the model is told or has a summary of. 0.99 is measured. A lower goal lets the service
forget in order to compute less.
"""


def missed(added: Sequence[Added], costs: Mapping[str, Cost], long: Mapping[str, Summary]) -> list[str]:
    """Without the CPU time, where the service runs on another machine, and without the long conversation, where it has
    not outgrown the window.
    """
    found = []
    for one in added:
        if one.streams == 1:
            found += above("TTFT that storing adds, one stream", 1e3 * one.difference.low, MOST_ADDED_MS, " ms")
    stored, stateless = costs["stored"].ingress_ms, costs["stateless"].ingress_ms
    if stored is not None and stateless is not None:
        found += above("CPU time of a turn in the ingress, stored / stateless", stored / stateless, MOST_INGRESS_RATIO)
    naive, fitted = long[NAIVE], long[FITTED]
    if naive.moved:
        ratio = fitted.computed_tokens / naive.computed_tokens
        found += above(f"computed tokens, {FITTED} / {NAIVE}", ratio, MOST_COMPUTED_RATIO)
        found += below(f"share that is known, {FITTED}", fitted.known, LEAST_KNOWN)
    return found
