"""SimulatedCell: a small cell of a plan that was simulated, and what it says about the whole. Pure.

The cell has the ratio of the plan's pools and at most CELL_WORKERS workers. A cluster is taken to carry as much per
worker as its cell. In larger pools prompts and answers vary less in sum, so this is rather too little than too much.
"""

from math import ceil, log

import msgspec

from cluster.planning.capacity_plan import CapacityPlan
from cluster.planning.demand import Demand
from cluster.planning.pools import Pools
from cluster.simulation.results.summary import RunSummary

CELL_WORKERS = 8
"""Most workers of a simulated cell. More come closer to the ratio of a plan; fewer take less time."""
RUN_S, RUN_ANSWERS = 120.0, 20.0
"""Least time that the requests of a simulated run should take to arrive at the rate of the plan: in seconds, and as a
multiple of the time of an answer. Shorter runs end before workers and queues are full, and find rates that are too
high; longer ones take more CPU time.
"""
LEAST_REQUESTS, MOST_REQUESTS = 2_000, 20_000
"""Fewest and most requests of a run. Fewer make attainments coarser; more take more CPU time."""


class SimulatedCell(msgspec.Struct, frozen=True, kw_only=True):
    """What the search has found."""

    num_prefill: int
    num_decode: int
    rate_per_s: float
    """Highest rate at which the target share of the requests, and of their tokens, was seen to be in time."""
    run: RunSummary
    """The figures at this rate."""
    at_plan: float | None
    """Attainment at the rate that the plan gives the cell. None if it is below the target."""
    num_runs: int
    is_finished: bool
    """Whether the search has found the highest rate. If not, the rate is a lower bound."""

    def pools(self, rate_per_s: float, tensor_parallel: int) -> Pools:
        """The pools that carry a rate if each worker carries as much as one of the cell."""
        cells = rate_per_s / self.rate_per_s
        return Pools(ceil(cells * self.num_prefill), ceil(cells * self.num_decode), tensor_parallel)


def attained_of(run: RunSummary) -> float:
    """The lesser of the shares of requests and of tokens within the objectives. A Scheduler beyond its capacity refuses
    long prompts first, and nine requests of ten may then have two thirds of the tokens: no plan should count on that.
    """
    return min(run.attainment, run.token_attainment)


def cell_of(pools: Pools) -> tuple[int, int]:
    """Prefill and decode workers of the cell: the ratio that is next to that of the pools, with the most workers."""
    if pools.num_workers <= CELL_WORKERS:
        return pools.num_prefill, pools.num_decode
    wanted = log(pools.num_prefill / pools.num_decode)
    splits = [(p, d) for p in range(1, CELL_WORKERS) for d in range(1, CELL_WORKERS + 1 - p)]
    return min(splits, key=lambda split: (round(abs(log(split[0] / split[1]) - wanted), 9), -sum(split)))


def cell_rate(plan: CapacityPlan) -> float:
    """Requests per second that the cell of a plan carries by the plan."""
    num_prefill, num_decode = cell_of(plan.pools)
    return min(num_prefill * plan.prefill.rate_per_s, num_decode * plan.decode.worker.rate_per_s)


def num_requests_of(plan: CapacityPlan, demand: Demand) -> int:
    """How many requests a run of the cell of a plan should have."""
    answer_s = demand.decoded * plan.decode.step_s
    return round(min(max(max(RUN_S, RUN_ANSWERS * answer_s) * cell_rate(plan), LEAST_REQUESTS), MOST_REQUESTS))
