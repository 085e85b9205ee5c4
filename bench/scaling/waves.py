"""A load that rises and falls, made of a recorded one. Pure.

The recorded arrivals keep their order and their bursts. Their clock runs faster and slower, as a wave: around its crest
`1 + swing` times as fast as recorded, and `1 - swing` times in its trough. The number of requests stays the same.
"""

from collections.abc import Sequence
from math import pi, sin

from cluster.simulation.traffic.workload import Arrival

ROUNDS = 60
"""Steps of the search for the time of an arrival. Each halves the interval: more change nothing that is seen."""


def waved(rows: Sequence[Arrival], period_s: float, swing: float) -> list[Arrival]:
    """`period_s`: seconds from one trough to the next; the first is at 0. `swing`: in [0, 1)."""
    return [row.moved(_time_of(row.arrival_s, period_s, swing) - row.arrival_s) for row in rows]


def _time_of(recorded_s: float, period_s: float, swing: float) -> float:
    """The time t at which `recorded_s` seconds of the record have passed: t - swing / w * sin(w * t) = recorded_s."""
    w = 2 * pi / period_s
    low, high = recorded_s - period_s, recorded_s + period_s
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if middle - swing / w * sin(w * middle) < recorded_s:
            low = middle
        else:
            high = middle
    return max(0.0, low)
