"""WorkerRates: how many requests per second one worker of each pool carries within the objectives. Pure.

A decode worker carries what `baton plan` says (cluster/planning/decode_rate.py), and a prefill worker what fills BUSY
of its time, both for a sample of the requests that come and the step times that the Scheduler has learned of the
engines that run.
"""

from collections import Counter
from math import inf
from typing import Final, NamedTuple

from cluster.messages.scaling import EngineReading, LoadReading, OfferedRequest
from cluster.messages.transport import LinkSpeed
from cluster.planning.decode_rate import DecodeWorkerSetting, decode_rate
from cluster.planning.demand import Demand, DemandedRequest, demand_from
from cluster.planning.prefill_rate import prefill_load
from cluster.planning.worker_rate import Infeasible
from cluster.slo import Objective
from router.prediction.step_model import StepModel

BUSY: Final = 0.75
"""Share of its time that a worker may compute prompts. Higher lets prompts wait for one another; lower has workers
idle. The correction (cluster/scaling/correction.py) learns what is right for the objectives and the arrivals.
"""
NO_LINK: Final = LinkSpeed(latency_s=0.0, bytes_per_s=1e18)
"""Links bound no rate here: the Scheduler computes prompts where they are decoded if a link is too slow."""


class WorkerRates(NamedTuple):
    """Requests per second."""

    prefill: float
    """Requests whose prompts one prefill worker computes."""
    decode: float
    """Requests whose answers one decode worker generates."""


def worker_rates(reading: LoadReading, target: float) -> WorkerRates | None:
    """`target`: share of the requests that must meet both objectives. None if no request or no engine is known."""
    prefill, decode = reading.prefill.engine or reading.decode.engine, reading.decode.engine or reading.prefill.engine
    if prefill is None or decode is None or not reading.sample:
        return None
    demand, share = demand_from(tuple(map(_demanded, reading.sample))), target**0.5
    return WorkerRates(_prefill(demand, prefill), _decode(demand, decode, share))


def _demanded(request: OfferedRequest) -> DemandedRequest:
    objective = Objective(ttft_s=request.ttft_s, ttft_per_prefill=request.ttft_per_prefill, tpot_s=request.tpot_s)
    return DemandedRequest(request.num_prompt, request.num_cached, request.num_output, objective)


def _prefill(demand: Demand, engine: EngineReading) -> float:
    return BUSY / prefill_load(demand, StepModel(**engine.step_coefficients), engine.max_step_tokens).busy_s


def _decode(demand: Demand, engine: EngineReading, share: float) -> float:
    """The rate for requests of each TPOT objective alone, combined by their shares: few requests with a short objective
    fill few workers.
    """
    longest = max(demand.longest, engine.max_step_tokens)
    setting = DecodeWorkerSetting(
        times=StepModel(**engine.step_coefficients),
        kv_tokens=max(longest, engine.kv_capacity_tokens or engine.max_running * longest),
        kv_bytes_per_token=1,
        max_decoding=engine.max_running,
        link=NO_LINK,
    )
    numbers = Counter(float(f"{request.objective.tpot_s:.1e}") for request in demand.requests)
    worker_s = sum(number / _decode_rate(demand, setting, tpot_s, share) for tpot_s, number in numbers.items())
    return len(demand.requests) / worker_s


def _decode_rate(demand: Demand, setting: DecodeWorkerSetting, tpot_s: float, share: float) -> float:
    try:
        return decode_rate(demand, setting, tpot_s, share).worker.rate_per_s
    except Infeasible:  # no load is small enough: memory and the engine's limit alone bound a batch
        return decode_rate(demand, setting, inf, share).worker.rate_per_s
