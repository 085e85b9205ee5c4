"""The bound that no policy passes."""

import msgspec
import pytest

from bench.matrix.oracle import Bound, bound, demands
from cluster.simulation.experiment import Cluster, Experiment
from cluster.simulation.results.summary import summary
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos, slo_of
from cluster.simulation.traffic.workload import SimRequest, at_rate, rate_per_s

ROWS = generate(MIXES["tenants"], 150)
FEW = Cluster(num_workers=2)


def a_workload(rate: float, slo: str = "mid") -> list[SimRequest]:
    return at_rate(ROWS, rate / rate_per_s(ROWS), slo_of(parse_slos(slo), FEW.isolated_prefill_s))


def bound_at(rate: float, slo: str = "mid") -> Bound:
    return bound(a_workload(rate, slo), FEW.step_model, FEW.num_workers, FEW.kv_capacity_tokens)


@pytest.mark.parametrize("rate", [5.0, 15.0, 30.0])
@pytest.mark.parametrize(("policy", "num_prefill"), [("goodput", 1), ("lmetric_admission", 0), ("min_ttft", 0)])
def test_no_policy_attains_more(policy: str, num_prefill: int, rate: float) -> None:
    run = summary(Experiment(ROWS, FEW, parse_slos("mid")).run(policy, num_prefill, rate))
    most = bound_at(rate)
    assert run.attainment <= most.attainment + 1e-6
    assert run.token_attainment <= most.token_attainment + 1e-6


def test_all_is_attained_at_light_load_and_less_at_a_thousandfold() -> None:
    assert bound_at(1.0) == pytest.approx((1.0, 1.0))
    assert bound_at(3000.0).token_attainment < 0.8


def test_tighter_objective_attains_less() -> None:
    assert bound_at(60.0, "tight").token_attainment < bound_at(60.0, "loose").token_attainment


def test_less_memory_attains_less() -> None:
    model, workload = FEW.step_model, a_workload(60.0, "loose")
    much, little = (bound(workload, model, 2, tokens) for tokens in (300_000, 5_000))
    assert little.token_attainment < much.token_attainment - 0.02


def test_prefix_of_an_earlier_request_costs_nothing() -> None:
    request = msgspec.structs.replace(a_workload(1.0)[0], num_prompt=2048, block_hashes=[b"a", b"b", b"c", b"d"])
    longer = msgspec.structs.replace(request, num_prompt=3000, block_hashes=[*request.block_hashes, b"e"])
    other = msgspec.structs.replace(request, block_hashes=[b"z", b"b", b"c", b"d"])
    found = demands([request, longer, request, other], FEW.step_model)
    assert [demand.num_new for demand in found] == [2048, 3000 - 2048, 1, 2048]
