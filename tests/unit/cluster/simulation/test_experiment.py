import pytest

from cluster.simulation.experiment import Cluster, Experiment, TargetMissed, parse_link
from cluster.simulation.results.summary import summary
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos


def test_run_stops_when_its_target_is_out_of_reach_and_leaves_nothing_behind(recwarn: pytest.WarningsRecorder) -> None:
    rows = generate(MIXES["poisson"], 300)
    crowded = Experiment(rows, Cluster(num_workers=2), parse_slos("mid"))
    seen: list[object] = []
    with pytest.raises(TargetMissed):
        crowded.run("round_robin", 0, 500.0, target=0.9, on_record=seen.append)
    assert len(seen) < 300
    assert not recwarn.list


def test_same_experiment_gives_the_same_records() -> None:
    rows = generate(MIXES["tenants"], 80)
    runs = [Experiment(rows, Cluster(), parse_slos("mid")).run("power_of_two", 4, 30.0, seed=3) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 80


@pytest.mark.parametrize(("rule", "num_prefill"), [("lmetric", 0), ("min_ttft", 0), ("pd_threshold", 2)])
def test_rule_with_admission_refuses_what_it_would_serve_late(rule: str, num_prefill: int) -> None:
    crowded = Experiment(generate(MIXES["poisson"], 400), Cluster(num_workers=4), parse_slos("mid"))
    plain, admitted = (summary(crowded.run(name, num_prefill, 60.0)) for name in (rule, f"{rule}_admission"))
    assert plain.accepted == 1.0 > admitted.accepted
    assert admitted.attainment > plain.attainment
    assert admitted.accepted_attainment > plain.accepted_attainment


def test_policy_without_admission_refuses_nothing() -> None:
    crowded = Experiment(generate(MIXES["poisson"], 400), Cluster(num_workers=4), parse_slos("mid"))
    assert summary(crowded.run("goodput_no_admission", 2, 60.0)).accepted == 1.0


def test_pools_are_split_and_policies_without_prefill_pool_get_all_workers() -> None:
    experiment = Experiment(generate(MIXES["chat"], 10), Cluster(), parse_slos("mid"))
    assert experiment.split_name("goodput", 3) == "3P5D"
    assert experiment.split_name("lmetric", 3) == "8"
    setting = Cluster(host_tokens=7).split(3)
    assert (setting.prefill.number, setting.decode.number) == (3, 5)
    assert setting.prefill.kind != setting.decode.kind
    assert setting.decode.engine.host_tokens == 7


def test_link_is_named_or_a_number() -> None:
    assert parse_link("12").bytes_per_s == 12e9
    assert parse_link("tcp").bytes_per_s < 1e9
