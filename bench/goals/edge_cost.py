"""The goal of bench/edge_cost.py. Pure."""

from collections.abc import Mapping

from bench.goals.verdict import above

MOST_CPU_RATIO = 1.25
"""CPU time of a request relative to the other commit's, the median of the rounds. 1.05 and 0.98 are measured, and
single rounds are 0.80 to 1.19. A higher goal accepts a dearer edge; a lower one fails in noise.
"""


def missed(ratios: Mapping[str, float]) -> list[str]:
    """`ratios`: by what was measured. Latency has no goal: it depends on what else the machine does."""
    cpu = {what: ratio for what, ratio in ratios.items() if "CPU" in what}
    if not cpu:
        return ["no CPU time was measured"]
    return [
        line for what, ratio in cpu.items() for line in above(f"{what}, this commit / the other", ratio, MOST_CPU_RATIO)
    ]
