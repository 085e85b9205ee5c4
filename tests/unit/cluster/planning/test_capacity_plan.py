"""The sizes of a plan bear its rate, and move with what is asked in the right direction."""

from math import inf, nan

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cluster.planning.capacity_plan import CapacityPlan, best_plan, plan_with
from cluster.planning.worker_rate import Infeasible, WorkerBound
from router.prediction.hardware import DEVICES, H100, L4, LLAMA_3_1_405B, MODELS, QWEN3_30B_A3B
from router.prediction.roofline import Hardware, kv_capacity_tokens, step_model
from tests.unit.cluster.planning.plans import a_demand, a_plan, an_offer

RATES = st.floats(0.01, 1e6)
LENGTHS = st.tuples(st.integers(20, 8000), st.integers(1, 2000))
TIMES = st.floats(0.05, 5.0)
TPOTS = st.floats(0.005, 0.3)


def planned(rate: float, lengths: tuple[int, int], ttft_s: float, tpot_s: float, target: float = 0.9) -> CapacityPlan:
    """A plan, or no example if there is none."""
    demand = a_demand(*lengths, slo=f"{ttft_s:.6f}+1x/{tpot_s:.6f}")
    try:
        return a_plan(rate, demand, target)
    except Infeasible:
        assume(False)
        raise


@settings(max_examples=60, deadline=None)
@given(rate=RATES, lengths=LENGTHS, ttft_s=TIMES, tpot_s=TPOTS)
def test_sizes_bear_the_rate_and_no_worker_is_left_over(
    rate: float, lengths: tuple[int, int], ttft_s: float, tpot_s: float
) -> None:
    plan = planned(rate, lengths, ttft_s, tpot_s)
    for number, worker in ((plan.pools.num_prefill, plan.prefill), (plan.pools.num_decode, plan.decode.worker)):
        assert number * worker.rate_per_s >= rate * (1 - 1e-9)
        assert (number - 1) * worker.rate_per_s < rate
    assert plan.pools.num_workers * (1 / plan.work_s) >= rate  # no placement carries more


@settings(max_examples=40, deadline=None)
@given(rate=RATES, more=st.floats(1, 100), lengths=LENGTHS, ttft_s=TIMES, tpot_s=TPOTS)
def test_more_requests_never_need_fewer_devices(
    rate: float, more: float, lengths: tuple[int, int], ttft_s: float, tpot_s: float
) -> None:
    few, many = (planned(r, lengths, ttft_s, tpot_s).pools.num_devices for r in (rate, rate * more))
    assert many >= few


@settings(max_examples=40, deadline=None)
@given(
    lengths=LENGTHS,
    ttft_s=TIMES,
    tpot_s=TPOTS,
    longer=st.tuples(st.floats(1, 4), st.floats(1, 4)),
    lower=st.floats(0.01, 1),
)
def test_looser_objectives_never_need_more_devices(
    lengths: tuple[int, int], ttft_s: float, tpot_s: float, longer: tuple[float, float], lower: float
) -> None:
    tight = planned(500.0, lengths, ttft_s, tpot_s)
    loose = planned(500.0, lengths, ttft_s * longer[0], tpot_s * longer[1], 0.9 * lower)
    assert loose.pools.num_devices <= tight.pools.num_devices


@settings(max_examples=40, deadline=None)
@given(device=st.sampled_from(["a100", "h100", "h200", "b200"]), lengths=LENGTHS, tpot_s=TPOTS, mixture=st.booleans())
def test_twice_the_bandwidth_never_lowers_the_rate_of_decode_workers(
    device: str, lengths: tuple[int, int], tpot_s: float, mixture: bool
) -> None:
    rates = []
    for factor in (1, 2):
        hardware = msgspec.structs.replace(
            DEVICES[device], memory_bytes_per_s=factor * DEVICES[device].memory_bytes_per_s
        )
        model = QWEN3_30B_A3B if mixture else MODELS["qwen3-8b"]
        try:
            plan = plan_with(a_demand(*lengths, slo=f"60/{tpot_s}"), 10.0, 0.9, an_offer(model, hardware), 1)
        except Infeasible:
            assume(False)
            raise
        rates.append(plan.decode.worker.rate_per_s)
    assert rates[1] >= rates[0] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("slo", "lengths", "link", "pool", "bound"),
    [
        ("60/0.05", (4000, 20), "400g", "prefill", WorkerBound.COMPUTE),
        ("1.2/0.2", (4000, 20), "400g", "prefill", WorkerBound.TTFT),
        ("60/0.02", (500, 1000), "400g", "decode", WorkerBound.TPOT),
        ("60/0.5", (3000, 1000), "400g", "decode", WorkerBound.MEMORY),
        ("60/0.5", (100, 300), "400g", "decode", WorkerBound.BATCH_LIMIT),
        ("60/0.2", (4000, 100), "tcp", "decode", WorkerBound.LINK),
    ],
)
def test_bottleneck_is_what_binds(slo: str, lengths: tuple[int, int], link: str, pool: str, bound: WorkerBound) -> None:
    plan = best_plan(a_demand(*lengths, slo=slo), 100.0, 0.9, an_offer(link=link), (2,))
    assert plan.bottleneck == (pool, bound)


def test_tensor_parallelism_is_what_takes_fewest_devices() -> None:
    tried = [a_plan(tp=tp).pools.num_devices for tp in (2, 4, 8)]  # one device has no memory beside the weights
    assert a_plan().pools.num_devices == min(tried)


@pytest.mark.parametrize("rate", [0.0, -1.0, inf, nan])
def test_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        a_plan(rate)


@pytest.mark.parametrize("target", [0.0, 1.0, nan])
def test_target_that_is_none_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="is not between 0 and 1"):
        a_plan(target=target)


@pytest.mark.parametrize(
    ("slo", "hardware", "message"),
    [
        ("0.01/0.05", H100, r"TTFT objective of 0.01 s is too short, and [\d.]+ s are the least"),
        ("1/0.001", H100, r"TPOT objective is 1 ms, and [\d.]+ ms are the least"),
        ("1/0.05", L4, "leave no memory for KV blocks"),
    ],
)
def test_objectives_that_no_worker_meets_are_refused_with_the_least(slo: str, hardware: Hardware, message: str) -> None:
    model = LLAMA_3_1_405B if hardware is L4 else MODELS["qwen3-32b"]
    with pytest.raises(Infeasible, match=message):
        best_plan(a_demand(slo=slo), 1.0, 0.9, an_offer(model, hardware), (1, 2, 4, 8))


def test_least_objectives_that_are_named_can_be_met() -> None:
    with pytest.raises(Infeasible) as refused:
        a_plan(demand=a_demand(slo="0.01/0.5"), tp=2)
    least_s = float(str(refused.value).partition("and ")[2].partition(" s are")[0])
    assert a_plan(demand=a_demand(slo=f"{1.01 * least_s}/0.5"), tp=2).pools.num_prefill >= 1


def test_heads_must_be_divided_evenly() -> None:
    with pytest.raises(Infeasible, match="64 heads and 8 KV heads cannot be divided"):
        a_plan(tp=3)


def test_more_devices_than_kv_heads_keep_each_head_several_times() -> None:
    """As engines do: QWEN3_30B_A3B has 4 KV heads."""
    with_8 = msgspec.structs.replace(QWEN3_30B_A3B, kv_heads=8)
    attention = with_8.num_bytes - QWEN3_30B_A3B.num_bytes  # the weights of 4 more heads
    on_8 = kv_capacity_tokens(QWEN3_30B_A3B, H100, 8)
    assert on_8 == pytest.approx(kv_capacity_tokens(with_8, H100, 8) + attention / with_8.kv_bytes_per_token, rel=1e-3)
    assert step_model(QWEN3_30B_A3B, H100, 8).context_s == step_model(with_8, H100, 8).context_s


def test_answers_of_one_token_are_decoded_by_nobody() -> None:
    demand = a_demand(1000, 1)
    plan = a_plan(1.0, msgspec.structs.replace(demand, decoded=0.0, context=0.0, context_at_end=0.0))
    assert (plan.pools.num_decode, plan.decode.batch) == (1, 0.0)
