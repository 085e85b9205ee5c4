"""How many requests per second a decode worker generates the answers of, within their TPOT objectives. Pure.

Three things bound the largest batch B of a step:

- the TPOT objective: step_s(B) + transfer_s / decoded <= TPOT, where the transfer delays the second token once;
- the memory: B * context_at_end <= KV tokens of the worker;
- the engine: B <= its limit on requests.

The number of requests on a worker varies as a Poisson number does. So the mean batch b leaves room for a share of the
time that is the target: b + z * sqrt(b) = B, with z the quantile of the normal distribution. With b requests in a step
the worker gives b / step_s(b) tokens per second, of which each request needs `decoded`.
"""

from math import sqrt
from statistics import NormalDist

import msgspec

from cluster.messages.transport import LinkSpeed
from cluster.planning.demand import Demand
from cluster.planning.worker_rate import Infeasible, WorkerBound, WorkerRate, boundary, link_rate
from router.prediction.step_model import StepModel


class DecodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch of a decode worker by each of its bounds."""

    engine: int
    tpot: int
    """At most the engine's limit: larger batches are not looked at."""
    memory: float

    @property
    def least(self) -> tuple[float, WorkerBound]:
        bounds = (
            (self.engine, WorkerBound.BATCH_LIMIT),
            (self.tpot, WorkerBound.TPOT),
            (self.memory, WorkerBound.MEMORY),
        )
        return min(bounds, key=lambda bound: bound[0])


class DecodeRate(msgspec.Struct, frozen=True, kw_only=True):
    worker: WorkerRate
    limits: DecodeLimits
    batch: float
    """Mean number of requests that decode on a worker at its rate."""
    step_s: float
    """Seconds of a step with this batch."""


class DecodeWorkerSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A decode worker and its link."""

    times: StepModel
    kv_tokens: int
    kv_bytes_per_token: int
    max_decoding: int
    """Most requests that the engine runs at a time."""
    link: LinkSpeed


def decode_rate(demand: Demand, setting: DecodeWorkerSetting, tpot_s: float, share: float) -> DecodeRate:
    """The largest rate at which a worker has no more than its largest batch for the `share` of the time.

    Raises:
        Infeasible: one request alone takes longer than the objective allows, or has no memory.
    """
    if setting.kv_tokens < demand.longest:
        raise Infeasible(f"the longest request has {demand.longest} tokens, and the KV memory {setting.kv_tokens}")
    by_link = link_rate(setting.link.bytes_per_s, demand.kv_bytes(setting.kv_bytes_per_token))
    if not demand.decoded:  # all answers have one token, which the prefill gives
        limits = DecodeLimits(engine=setting.max_decoding, tpot=setting.max_decoding, memory=setting.max_decoding)
        return DecodeRate(worker=WorkerRate(by_link, WorkerBound.LINK, 0.0), limits=limits, batch=0.0, step_s=0.0)
    limits = _limits(demand, setting, tpot_s)
    most, bound = limits.least
    batch = mean_batch(most, share)
    rate = batch / (demand.decoded * setting.times.decode_s(batch, batch * demand.context))
    if by_link < rate:
        rate, bound = by_link, WorkerBound.LINK
        batch = batch_at(rate * demand.decoded, demand.context, setting.times, batch)
    step_s = setting.times.decode_s(batch, batch * demand.context)
    return DecodeRate(worker=WorkerRate(rate, bound, batch / most), limits=limits, batch=batch, step_s=step_s)


def mean_batch(most: float, share: float) -> float:
    """The mean of a Poisson number that is at most `most` with the probability `share`, if the number is large."""
    z = max(0.0, NormalDist().inv_cdf(share))
    return ((sqrt(z * z + 4 * most) - z) / 2) ** 2


def batch_at(tokens_per_s: float, context: float, times: StepModel, most: float) -> float:
    """The batch with which a worker gives this many tokens per second. `most`: a batch that gives at least as many."""
    _, batch = boundary(lambda batch: batch < tokens_per_s * times.decode_s(batch, batch * context), 0.0, most)
    return batch


def _limits(demand: Demand, setting: DecodeWorkerSetting, tpot_s: float) -> DecodeLimits:
    times, context = setting.times, demand.context
    transfer_s = setting.link.latency_s + demand.kv_bytes(setting.kv_bytes_per_token) / setting.link.bytes_per_s
    per_token_s = transfer_s / demand.decoded
    alone_s = times.decode_s(1, context)
    if alone_s + per_token_s > tpot_s:
        raise Infeasible(
            f"the TPOT objective is {1e3 * tpot_s:.3g} ms, and {1e3 * (alone_s + per_token_s):.3g} ms are the least: a "
            f"step with one request takes {1e3 * alone_s:.3g} ms, and the handoff adds {1e3 * per_token_s:.2g} ms per "
            "token"
        )
    low, high = 1, setting.max_decoding + 1  # `low` is within the objective, and `high` counts as beyond it
    while high - low > 1:
        middle = (low + high) // 2
        is_within = times.decode_s(middle, middle * context) + per_token_s <= tpot_s
        low, high = (middle, high) if is_within else (low, middle)
    return DecodeLimits(engine=setting.max_decoding, tpot=low, memory=setting.kv_tokens / demand.context_at_end)
