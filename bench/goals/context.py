"""The goals of bench/context.py, for a conversation that outgrows the window. Nothing in it is a time, so that two runs
give the same figures. Pure.
"""

from dataclasses import dataclass

from bench.goals.verdict import above, below

WIDE_WINDOW = 8192
"""Tokens of the default window. In narrower ones the plan can save less."""
MOST_COMPUTED_RATIO = 0.5
"""Tokens that a turn has computed, those for summaries included, relative to dropping the oldest turn, from WIDE_WINDOW
on. 0.23 is measured. A higher goal lets the plan lose what it is made for; a lower one fails for other talks.
"""
MOST_COMPUTED_RATIO_NARROW = 1.0
"""The same in narrower windows, where the plan shall be worth something at least. 0.77 is measured with 2,048."""
LEAST_KNOWN = 0.95
"""Share of the conversation that a prompt with summaries holds or sums up. 1.0 is measured. A lower goal lets the plan
forget in order to compute less.
"""


@dataclass(frozen=True)
class PerTurn:
    """Means over the turns of one policy."""

    computed: float
    read: float
    """Tokens that summaries are written from."""
    moved: int
    """Turns with less than half of their prompt in the cache."""
    known: float


def missed(window: int, naive: PerTurn, summarizing: PerTurn) -> list[str]:
    """`naive`: drops the oldest turn. Where it never has to, the window holds everything, and there is no goal."""
    if not naive.moved:
        return []
    most = MOST_COMPUTED_RATIO if window >= WIDE_WINDOW else MOST_COMPUTED_RATIO_NARROW
    ratio = (summarizing.computed + summarizing.read) / naive.computed
    return [
        *above("tokens to compute, the plan with summaries / dropping the oldest", ratio, most),
        *below("share of the conversation that the plan with summaries knows", summarizing.known, LEAST_KNOWN),
    ]
