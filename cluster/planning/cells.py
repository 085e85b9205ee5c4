"""Cells: how many Schedulers a plan needs. A cell is an application with one Scheduler, which runs on one core. Pure.

The core has to take the reports of all workers, the KV events of all blocks, and the placements. docs/limits.md has
their costs, measured on one processor. Each request counts as handed over, so its prompt's blocks come into two caches.
"""

from math import ceil
from typing import NamedTuple

from cluster.config.pools import DEFAULT_BLOCK_SIZE
from cluster.planning.demand import Demand

MOST_WORKERS = 1000
"""Workers of a cell: the most that the Scheduler was measured with. More is untried; fewer asks for more cells."""
CORE_SHARE = 0.7
"""Share of its core that a Scheduler may take: with 0.71 the p99 of a placement was 5 ms, with 0.92 it was 77 ms.
Higher delays first tokens; lower asks for more cells.
"""
REPORTS_S = 0.15e-3
"""CPU seconds per second for the reports of one worker. Higher asks for more cells; lower overloads the Scheduler."""
SHORT, LONG = (512, 0.2e-3), (8000, 0.8e-3)
"""Prompt tokens and CPU seconds of a placement, for two lengths. Costs between and beyond are on the line through both.
Higher asks for more cells; lower overloads the Scheduler.
"""
BLOCK_S = 3e-6
"""CPU seconds for a KV block that comes into a cache and one that goes. Higher asks for more cells; lower overloads the
Scheduler.
"""


class Cells(NamedTuple):
    number: int
    cores: float
    """CPU seconds per second that the Schedulers of all cells take together."""


def cells_of(rate_per_s: float, demand: Demand, num_workers: int) -> Cells:
    cores = rate_per_s * request_s(demand) + num_workers * REPORTS_S
    return Cells(max(1, ceil(num_workers / MOST_WORKERS), ceil(cores / CORE_SHARE)), cores)


def request_s(demand: Demand) -> float:
    """CPU seconds of the Scheduler for one request."""
    blocks = (demand.new + demand.prompt + demand.output) / DEFAULT_BLOCK_SIZE
    (short, short_s), (long, long_s) = SHORT, LONG
    place_s = short_s + (long_s - short_s) * max(0.0, demand.prompt - short) / (long - short)
    return place_s + blocks * BLOCK_S
