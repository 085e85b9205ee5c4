"""The goals of bench/constraint_cost.py. Pure."""

from collections.abc import Mapping

from bench.goals.verdict import above

VLLMS_CHECK = "vLLM's own check, on the event loop"
COUNTING, NEW, KNOWN = (
    "counting the bounds",
    "a new constraint waits, beside the event loop",
    "a constraint that is known",
)
MOST_LOOP_RATIO = 1.0
"""What Baton's checks of a known constraint take on the event loop, relative to vLLM's own check, which they replace.
0.33 and 0.37 are measured. A higher goal lets constraints hold up streams for longer than in vLLM; a lower one fails
in noise.
"""
MOST_GUARD_RATIO = 2.0
"""CPU time per token of an answer in an engine, with the guard relative to without it. 1.46 and 1.5 are measured. A
higher goal lets the guard slow down all sequences of an engine; a lower one fails in noise.
"""


def missed(what: str, ingress_ms: Mapping[str, float], plain_us: float, guarded_us: float) -> list[str]:
    """`what`: the schema that was measured."""
    loop_ratio = (ingress_ms[COUNTING] + ingress_ms[KNOWN]) / ingress_ms[VLLMS_CHECK]
    return [
        *above(f"{what}: checks on the event loop, Baton / vLLM", loop_ratio, MOST_LOOP_RATIO),
        *above(f"{what}: following it, with the guard / without", guarded_us / plain_us, MOST_GUARD_RATIO),
    ]
