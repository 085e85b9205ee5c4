import random
from statistics import median

import pytest

from cluster.simulation.engine.truth.truth import Stragglers, Truth
from cluster.simulation.engine.truth.uneven_steps import Noise
from cluster.simulation.experiment import Cluster, Experiment, TargetMissed, parse_link
from cluster.simulation.pools.pool_setting import PoolSetting
from cluster.simulation.results.summary import summary
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import parse_slos
from cluster.simulation.traffic.workload import Arrival
from router.prediction.hardware import prior
from tests.expected import present


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


def test_rule_that_refuses_by_its_own_prediction_serves_in_time_what_it_takes() -> None:
    crowded = Experiment(generate(MIXES["poisson"], 400), Cluster(num_workers=4), parse_slos("loose"))
    plain, refusing = (summary(crowded.run(name, 0, 60.0)) for name in ("min_ttft", "min_ttft_refuses"))
    assert plain.accepted == 1.0 > refusing.accepted
    assert refusing.accepted_attainment > plain.accepted_attainment


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


def test_truth_changes_the_engines_and_not_what_the_scheduler_starts_from() -> None:
    usual, other = Cluster(), Cluster(truth=Truth(form="tiled", stragglers=Stragglers(number=1, factor=3.0)))
    work = 300, 1e6, 20, 50_000
    for before, after in zip(pools(usual), pools(other), strict=True):
        assert before.kind == after.kind
        assert after.model.step_s(*work) != present(prior(after.kind)).step_s(*work) == before.model.step_s(*work)
    assert usual.isolated_prefill_s(3000) == other.isolated_prefill_s(3000)


def pools(cluster: Cluster) -> tuple[PoolSetting, PoolSetting]:
    setting = cluster.split(4)
    return setting.prefill, setting.decode


def test_stragglers_are_the_first_workers_of_each_pool() -> None:
    chance = random.Random(1)
    for pool, number in zip(
        pools(Cluster(truth=Truth(stragglers=Stragglers(number=3, factor=2.0)))), (2, 1), strict=True
    ):
        steps_s = [pool.step_times(index, chance).decode_run_s(8, 1000, 10) for index in range(4)]
        expected_s = pool.model.decode_run_s(8, 1000, 10)
        assert steps_s == [2 * expected_s] * number + [expected_s] * (4 - number)


def test_slow_decode_worker_gives_its_tokens_more_slowly() -> None:
    rows = generate(MIXES["chat"], 60)
    tpots: dict[float, float] = {}
    for factor in (1.0, 2.0):
        cluster = Cluster(num_workers=1, truth=Truth(stragglers=Stragglers(number=1, factor=factor)))
        records = Experiment(rows, cluster, parse_slos("mid")).run("round_robin", 0, 0.05)
        tpots[factor] = median(record.tpot_s for record in records if record.tpot_s)
    assert tpots[2.0] == pytest.approx(2 * tpots[1.0], rel=0.05)


def test_noise_has_a_seed() -> None:
    rows = generate(MIXES["tenants"], 80)
    firsts = []
    for seed in (1, 1, 2):
        truth = Truth(noise=Noise(sigma=0.2, stall_share=0.01, stall_s=0.2), seed=seed)
        records = Experiment(rows, Cluster(truth=truth), parse_slos("mid")).run("goodput", 4, 30.0)
        firsts.append([record.ttft_s for record in records])
    assert firsts[0] == firsts[1] != firsts[2]


def test_each_worker_has_its_own_noise() -> None:
    rows = [Arrival(arrival_s=float(number // 2), num_prompt=1000, num_output=2) for number in range(20)]
    records = Experiment(rows, Cluster(num_workers=2, truth=Truth(noise=Noise(sigma=0.2))), parse_slos("mid")).run(
        "round_robin", 0, 1.0
    )
    assert len({round(present(record.ttft_s), 9) for record in records}) == len(records)


def test_more_stragglers_than_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="9 stragglers are more than the 8 workers"):
        Cluster(truth=Truth(stragglers=Stragglers(number=9, factor=2.0)))
