"""The goals of bench/limits_cost.py. Pure."""

from bench.goals.verdict import above

MOST_CPU_MS = 0.5
"""CPU milliseconds of the ingress process for one reservation and its settlement. A higher goal accepts a dearer
request; a lower one fails on slower cores.
"""


def missed(cpu_s: float) -> list[str]:
    return above("CPU of a reservation and its settlement", 1e3 * cpu_s, MOST_CPU_MS, " ms")
