"""CapacityPlan: the pools that serve a demand within its objectives, computed from the roofline model. Pure.

Every request is planned as handed over: its prompt on a prefill worker, its answer on a decode worker. Each of both
objectives is met by the square root of the target, so both are met by the target if misses are independent.
"""

from collections.abc import Sequence
from math import ceil, sqrt

import msgspec

from cluster.messages.transport import LinkSpeed
from cluster.planning.decode_rate import DecodeRate, DecodeWorkerSetting, batch_at, decode_rate
from cluster.planning.demand import Demand
from cluster.planning.pools import Pools
from cluster.planning.prefill_rate import PrefillLoad, prefill_load, prefill_rate
from cluster.planning.worker_rate import Infeasible, WorkerBound, WorkerRate
from router.prediction.roofline import Hardware, ModelShape, kv_capacity_tokens, step_model
from router.prediction.step_model import StepModel

TENSOR_PARALLEL = (1, 2, 4, 8)
"""Devices per worker that a plan may choose. More than 8 would span nodes, and the roofline knows no such links; fewer
choices may miss the cheapest one.
"""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The model and the machines that a plan may use."""

    model: ModelShape
    hardware: Hardware
    link: LinkSpeed
    """Speed of the link of one device. A worker has as many of them as devices."""
    step_tokens: int
    """Most prompt tokens of a prefill step."""
    max_decoding: int
    """Most requests that an engine runs at a time."""


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    pools: Pools
    rate_per_s: float
    prefill: WorkerRate
    prefill_load: PrefillLoad
    decode: DecodeRate
    kv_tokens: int
    """Tokens that the KV memory of a worker holds."""
    num_running: float
    """Mean number of requests that are computed or generated at a time."""
    batch: float
    """Mean number of requests that decode on a worker at the planned rate. It is less than `decode.batch`, because
    workers are whole.
    """
    step_s: float
    """Seconds of a decode step at the planned rate."""
    work_s: float
    """Seconds of a worker that a request takes at least: its prompt in full steps, and what its answer tokens add to
    them. No placement carries much more than 1 / work_s requests per second and worker.
    """

    @property
    def least_workers(self) -> int:
        """Workers that the requests take if each worker is always busy, and each request is served."""
        return ceil(self.rate_per_s * self.work_s)

    @property
    def bottleneck(self) -> tuple[str, WorkerBound]:
        """The pool with more workers, and what bounds it."""
        if self.pools.num_prefill > self.pools.num_decode:
            return "prefill", self.prefill.bound
        return "decode", self.decode.worker.bound


def best_plan(demand: Demand, rate_per_s: float, target: float, offer: Offer, sizes: Sequence[int]) -> CapacityPlan:
    """The plan with the fewest devices. `sizes`: the tensor parallelism that is tried, from small to large.

    Raises:
        ValueError: the rate or the target has no plan, or the model does not fit, or the objectives cannot be met.
    """
    if not 0 < rate_per_s < float("inf"):
        raise ValueError(f"a rate of {rate_per_s:g} requests per second cannot be planned: it must be more than 0")
    if not 0 < target < 1:
        raise ValueError(f"a target of {target:g} is not between 0 and 1")
    plans, reasons = [], []
    for size in sizes:
        try:
            plans.append(plan_with(demand, rate_per_s, target, offer, size))
        except Infeasible as error:
            reasons.append(f"with tensor parallelism {size}, {error}")
    if not plans:
        raise Infeasible("; ".join(reasons))
    return min(plans, key=lambda plan: plan.pools.num_devices)


def plan_with(demand: Demand, rate_per_s: float, target: float, offer: Offer, size: int) -> CapacityPlan:
    """The plan with workers of `size` devices.

    Raises:
        Infeasible: the model does not fit, or the objectives cannot be met.
    """
    model, hardware = offer.model, offer.hardware
    if model.heads % size or (model.kv_heads % size and size % model.kv_heads):
        raise Infeasible(f"the model's {model.heads} heads and {model.kv_heads} KV heads cannot be divided")
    kv_tokens = kv_capacity_tokens(model, hardware, size)
    if kv_tokens < offer.step_tokens:
        raise Infeasible(
            f"the weights of {model.num_bytes / 1e9:.0f} GB leave no memory for KV blocks in "
            f"{size * hardware.memory_bytes / 1e9:.0f} GB"
        )
    times, share = step_model(model, hardware, size), sqrt(target)
    link = link_of(offer.link, size)
    load = prefill_load(demand, times, offer.step_tokens)
    prefill = prefill_rate(load, share, link.bytes_per_s, demand.kv_bytes(model.kv_bytes_per_token))
    setting = DecodeWorkerSetting(
        times=times,
        kv_tokens=kv_tokens,
        kv_bytes_per_token=model.kv_bytes_per_token,
        max_decoding=offer.max_decoding,
        link=link,
    )
    decode = decode_rate(demand, setting, _tpot_of(demand, share), share)
    pools = Pools(ceil(rate_per_s / prefill.rate_per_s), ceil(rate_per_s / decode.worker.rate_per_s), size)
    batch = batch_at(rate_per_s * demand.decoded / pools.num_decode, demand.context, times, decode.batch)
    return CapacityPlan(
        pools=pools,
        rate_per_s=rate_per_s,
        prefill=prefill,
        prefill_load=load,
        decode=decode,
        kv_tokens=kv_tokens,
        num_running=rate_per_s * load.busy_s + pools.num_decode * batch,
        batch=batch,
        step_s=times.decode_s(batch, batch * demand.context) if batch else 0.0,
        work_s=load.busy_s + demand.decoded * _token_s(demand, times),
    )


def link_of(link: LinkSpeed, size: int) -> LinkSpeed:
    """The link of a worker of `size` devices."""
    return LinkSpeed(latency_s=link.latency_s, bytes_per_s=size * link.bytes_per_s)


def _token_s(demand: Demand, times: StepModel) -> float:
    """Seconds by which an answer token lengthens a step that is full of prompts."""
    return times.token_s + times.beyond_knee_s + times.request_s + demand.context * times.context_s


def _tpot_of(demand: Demand, share: float) -> float:
    """The longest TPOT that is within the objectives of the share of the requests."""
    ordered = sorted(request.objective.tpot_s for request in demand.requests)
    return ordered[int((1 - share) * len(ordered))]
