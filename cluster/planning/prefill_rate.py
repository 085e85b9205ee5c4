"""How many requests per second a prefill worker computes the prompts of, within their TTFT objectives. Pure.

A prompt takes the worker `busy_s`: its share of full steps. It waits for the prompts before it. With Poisson arrivals
at `rate`, the worker is busy for the share u = rate * E[busy_s] of its time, and the wait exceeds t with probability

    u * exp(-t / w),   w = E[busy_s] * (1 + cv^2) / (2 * (1 - u))

cv is the coefficient of variation of busy_s. The mean of this tail is the wait of an M/G/1 queue (Pollaczek and
Khinchine); that it is exponential is the usual approximation. t is what a request's objective leaves beside its own
prefill. Each worker counts as a queue of its own. The Scheduler sends a prompt where its wait is shortest, so a pool
waits less than this says.
"""

from math import exp
from statistics import fmean, pvariance

import msgspec

from cluster.planning.demand import Demand
from cluster.planning.worker_rate import Infeasible, WorkerBound, WorkerRate, boundary, link_rate
from router.prediction.step_model import StepModel, prompt_attention

MOST_BUSY = 0.95
"""Largest share of its time that a prefill worker may be busy. Higher plans queues that a small burst lets grow without
end; lower asks for workers that idle.
"""
NEARLY_BUSY = 0.9
"""Share of its time from which a busy prefill worker is said to be bound by compute, and not by its objective."""


class PrefillLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What prompts ask of a prefill worker, apart from their rate."""

    busy_s: float
    """Mean seconds of a worker that a prompt takes, in full steps."""
    squared_cv: float
    """Squared coefficient of variation of these seconds."""
    least_ttft_s: float
    """Shortest TTFT objective of an empty prompt among the requests."""
    slacks: tuple[float, ...]
    """Seconds that each prompt may wait: its TTFT objective less its own prefill alone."""

    def attained(self, busy: float) -> float:
        """Share of the prompts that are in time on a worker that is busy for this share of its time."""
        wait_s = self.busy_s * (1 + self.squared_cv) / (2 * (1 - busy))
        return fmean(1 - busy * exp(-slack / wait_s) if slack >= 0 else 0.0 for slack in self.slacks)


def prefill_load(demand: Demand, times: StepModel, step_tokens: int) -> PrefillLoad:
    """`step_tokens`: the most prompt tokens of a step."""
    token_s = times.step_s(step_tokens, 0.0, 0, 0.0) / step_tokens
    seconds = [
        request.num_new * token_s + prompt_attention(request.num_new, request.num_cached) * times.attended_s
        for request in demand.requests
    ]
    slacks = [
        request.objective.resolve(times.prefill_s(request.num_prompt, 0, step_tokens)).ttft_s
        - times.prefill_s(request.num_new, request.num_cached, step_tokens)
        for request in demand.requests
    ]
    busy_s = fmean(seconds)
    return PrefillLoad(
        busy_s=busy_s,
        squared_cv=pvariance(seconds, busy_s) / busy_s**2,
        least_ttft_s=min(request.objective.ttft_s for request in demand.requests),
        slacks=tuple(slacks),
    )


def prefill_rate(load: PrefillLoad, share: float, link_bytes_per_s: float, kv_bytes: float) -> WorkerRate:
    """The largest rate at which the `share` of all prompts is in time.

    Raises:
        Infeasible: fewer prompts than that are in time on an idle worker.
    """
    if load.attained(0.0) < share:
        ordered = sorted(load.slacks)
        short_s = -ordered[int((1 - share) * len(ordered))]
        raise Infeasible(
            f"the TTFT objective of {load.least_ttft_s:.3g} s is too short, and {load.least_ttft_s + short_s:.3g} s "
            f"are the least: more than {100 * (1 - share):.0f} % of the prompts take longer alone on an idle worker"
        )
    busy, _ = boundary(lambda busy: load.attained(busy) >= share, 0.0, MOST_BUSY)
    rate, bound = busy / load.busy_s, WorkerBound.COMPUTE if busy >= NEARLY_BUSY else WorkerBound.TTFT
    if (limit := link_rate(link_bytes_per_s, kv_bytes)) < rate:
        rate, bound = limit, WorkerBound.LINK
    return WorkerRate(rate, bound, rate * load.busy_s)
