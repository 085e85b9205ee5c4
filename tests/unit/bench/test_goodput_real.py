import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.fronts.setting import Setting
from bench.fronts.systems import System
from bench.goodput_real import loads
from bench.live.contenders import EngineRules, adapted, contenders, known_workers
from bench.live.goodput import Answer, Slo, difference, interval, median_difference, prediction_error, slos
from bench.live.mixes import CHAT, LONG, MOST_TURNS, THINK_S, asks, at_once, marked
from bench.live.receipts import Fate
from bench.live.report import Report
from bench.live.rounds import Plan, Results, Run
from cluster.config.application import parse

PROMISED = {CHAT: Slo(0.5, 0.02), LONG: Slo(2.0, 0.02)}


def words(rng: random.Random, tokens: int) -> str:
    return " ".join(str(rng.randrange(1000, 10000)) for _ in range(tokens))


def an_answer(kind: str = CHAT, status: int = 200, ttft_s: float | None = 0.1, tpot_s: float | None = 0.01) -> Answer:
    return Answer(kind, status, ttft_s, tpot_s, prompt_tokens=100, tokens=64, late_s=0.0)


def test_the_same_seed_asks_the_same_in_order_of_arrival() -> None:
    first, second = (asks("mixed", 5.0, 60.0, random.Random(3), words) for _ in range(2))
    assert first == second
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(first))
    assert first[0].at_s > 0 and first[-1].at_s < 60.0


@pytest.mark.parametrize(("mix", "share"), [("chats", 0.0), ("mixed", 0.2), ("long prompts", 1.0)])
def test_a_mix_has_its_share_of_long_prompts_and_its_rate(mix: str, share: float) -> None:
    asked = asks(mix, 5.0, 400.0, random.Random(0), lambda _, tokens: f"{tokens}")
    assert len(asked) == pytest.approx(2000, rel=0.1)
    assert sum(ask.kind == LONG for ask in asked) / len(asked) == pytest.approx(share, abs=0.05)


def test_a_turn_has_all_earlier_turns_as_its_prefix_and_leaves_time_to_read() -> None:
    asked = asks("chats", 4.0, 60.0, random.Random(1), words)
    by_messages = {ask.messages: ask for ask in asked}
    continued = [ask for ask in asked if len(ask.messages) > 1]
    assert continued
    for ask in continued:
        earlier = by_messages[ask.messages[:-2]]
        assert ask.at_s >= earlier.at_s + THINK_S
    assert max(len(ask.messages) for ask in asked) == 2 * MOST_TURNS - 1


def test_a_mark_changes_where_a_prompt_begins_and_nothing_else() -> None:
    (ask, *_) = asks("chats", 5.0, 5.0, random.Random(0), words)
    assert marked(ask, "1001").messages[0] == f"1001 {ask.messages[0]}"
    assert at_once([marked(ask, "1001")])[0].at_s == 0.0


@pytest.mark.parametrize(
    ("answer", "is_good"),
    [
        (an_answer(), True),
        (an_answer(ttft_s=0.6), False),
        (an_answer(kind=LONG, ttft_s=0.6), True),
        (an_answer(tpot_s=0.03), False),
        (an_answer(tpot_s=None), True),
        (an_answer(status=429, ttft_s=None, tpot_s=None), False),
    ],
)
def test_an_answer_is_good_when_it_meets_both_objectives_of_its_kind(answer: Answer, is_good: bool) -> None:
    assert answer.is_good(PROMISED) is is_good


def test_slos_are_multiples_of_what_a_request_takes_alone() -> None:
    alone = [an_answer(ttft_s=t) for t in (0.01, 0.02, 0.9)] + [an_answer(LONG, ttft_s=0.2)] * 3
    promised = slos(alone, ttft_factor=5.0, base_s=0.1, tpot_factor=3.0)
    assert promised.keys() == {CHAT, LONG}
    assert (promised[CHAT].ttft_s, promised[CHAT].tpot_s) == pytest.approx((0.2, 0.03))
    assert (promised[LONG].ttft_s, promised[LONG].tpot_s) == pytest.approx((1.1, 0.03))


def test_an_interval_holds_the_mean_and_narrows_with_more_requests() -> None:
    rng = random.Random(0)
    few = interval([[float(rng.random() < 0.8) for _ in range(20)] for _ in range(3)], rng)
    many = interval([[float(rng.random() < 0.8) for _ in range(500)] for _ in range(3)], rng)
    assert few.low <= few.value <= few.high
    assert many.high - many.low < (few.high - few.low) / 2


def test_a_difference_is_paired() -> None:
    rng = random.Random(0)
    theirs = [[float(rng.random() < 0.5) for _ in range(100)] for _ in range(3)]
    assert difference(theirs, theirs, rng).low == difference(theirs, theirs, rng).high == 0.0
    ours = [[max(value, float(number < 10)) for number, value in enumerate(values)] for values in theirs]
    assert difference(ours, theirs, rng).low > 0


def test_a_difference_of_medians_is_paired_and_heeds_no_outlier() -> None:
    rng = random.Random(0)
    theirs = [rng.uniform(1, 2) for _ in range(200)]
    ours = [value + 0.1 for value in theirs]
    found = median_difference(ours, [*theirs[:-1], 1000.0], rng)
    assert found.low < found.value < found.high
    assert found.low > 0.0 and found.high < 0.2
    assert median_difference(theirs, theirs, rng).high == 0.0


def test_prediction_error_is_relative_to_what_came() -> None:
    error = prediction_error([(0.5, 1.0), (1.0, 1.0), (3.0, 2.0)])
    assert error and (error.count, error.p50, error.bias) == (3, 0.5, 1.0)
    assert prediction_error([]) is None


def test_the_adapted_config_is_valid_and_leaves_objectives_to_the_requests() -> None:
    conf = {"applications": [{"args": {"model": "m", "ingress": {"port": 1}, "slo": {}}}]}
    config = parse(adapted(conf, 2)["applications"][0]["args"])
    assert config.ingress.allow_path_header and config.ingress.keep_receipts
    assert config.slo.standard.resolve(1.0, ttft_s=0.2, tpot_s=0.01).ttft_s == 0.2


@pytest.mark.parametrize(("num_workers", "replicas", "cpus"), [(2, 1, 0.5), (4, 2, 0.25)])
def test_half_of_the_workers_prefill_and_all_share_the_same_cpus(num_workers: int, replicas: int, cpus: float) -> None:
    pool = {"replicas": 1, "cpus": 0.5, "engine": {"max_num_seqs": 8}}
    conf = {"applications": [{"args": {"model": "m", "ingress": {"port": 1}, "prefill": pool, "decode": pool}}]}
    args = adapted(conf, num_workers)["applications"][0]["args"]
    assert args["prefill"] == args["decode"] == {**pool, "replicas": replicas, "cpus": cpus}
    parse(args)


def test_workers_are_those_that_the_scheduler_knows() -> None:
    metrics = """# TYPE baton_workers gauge
baton_workers{deployment="scheduler",pool="prefill",replica="a"} 2.0
baton_workers{deployment="scheduler",pool="decode",replica="a"} 1.0
baton_workers{deployment="ingress",pool="decode",replica="b"} 7.0
baton_workers_else{deployment="scheduler"} 9.0
"""
    assert known_workers(metrics) == 3
    assert known_workers("") == 0


def a_setting(folder: Path) -> Setting:
    engine = {"max_num_batched_tokens": 2048}
    return Setting(folder, {"applications": [{"args": {"model": "m", "log_level": "ERROR", "engine": engine}}]})


@pytest.mark.parametrize("num_workers", [2, 4])
def test_each_system_has_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int) -> None:
    """No process is started: the commands are looked at."""
    commands: list[list[str]] = []

    def spawn(system: System, part: str, argv: list[str], **environment: str) -> Any:
        commands.append(argv)

    monkeypatch.setattr(System, "_spawn", spawn)
    monkeypatch.setattr("bench.fronts.systems.wait", lambda child, is_ready: None)
    monkeypatch.setattr("bench.fronts.systems.installed_router", lambda folder: Path("vllm-router"))
    no_driver: Any = None
    rules = EngineRules(256, by_priority=True)
    colocated, routed, fixed, ours = contenders(a_setting(tmp_path), no_driver, num_workers, rules)
    assert (colocated.name, len(set(colocated.ports))) == (f"{num_workers} x vllm", num_workers)
    assert fixed.system is ours.system
    colocated.system.start()
    assert [option(command, "--port") for command in commands] == [[str(port)] for port in colocated.ports]
    assert [option(command, "--max-num-batched-tokens") for command in commands] == [["256"]] * num_workers
    assert [option(command, "--scheduling-policy") for command in commands] == [["priority"]] * num_workers
    assert colocated.ttft_s(PROMISED) == {CHAT: 0.5, LONG: 2.0} and not ours.ttft_s(PROMISED)
    commands.clear()
    routed.system.start()
    *servers, router = commands
    assert [option(command, "--max-num-batched-tokens") for command in servers] == [["2048"]] * num_workers
    ports = [option(command, "--port")[0] for command in servers]
    roles = [json.loads(option(command, "--kv-transfer-config")[0])["kv_role"] for command in servers]
    by_role = {role: [port for port, of in zip(ports, roles, strict=True) if of == role] for role in set(roles)}
    assert option(router, "--prefill") == [f"http://127.0.0.1:{port}" for port in by_role["kv_producer"]]
    assert option(router, "--decode") == [f"http://127.0.0.1:{port}" for port in by_role["kv_consumer"]]
    assert len(by_role["kv_producer"]) == len(by_role["kv_consumer"]) == num_workers // 2


def test_a_load_is_one_share_for_all_mixes_or_one_for_each() -> None:
    assert loads([0.6], ["chats", "mixed"]) == {"chats": 0.6, "mixed": 0.6}
    assert loads([0.9, 0.5], ["chats", "mixed"]) == {"chats": 0.9, "mixed": 0.5}
    with pytest.raises(SystemExit, match="--load takes one share, or one for each of the 3 mixes, not 2"):
        loads([0.9, 0.5], ["chats", "mixed", "long prompts"])


def test_the_thin_model_has_one_layer_in_every_system(tmp_path: Path) -> None:
    setting = replace(a_setting(tmp_path), is_thin=True)
    ours = setting.paced_conf["applications"][0]["args"]["engine"]
    assert ours == setting.engine and ours["hf_overrides"]["num_hidden_layers"] == 1
    assert "hf_overrides" not in a_setting(tmp_path).engine


def option(command: list[str], name: str) -> list[str]:
    return [value for given, value in pairwise(command) if given == name]


def test_the_report_compares_ours_with_the_best_other_of_each_mix() -> None:
    plan = Plan(["mixed"], {"mixed": 0.8}, 2, 10.0, 5.0, 0.1, 3.0, 16, 0)
    results = Results(PROMISED, {"mixed": 5.0})
    fate = Fate("P->D", attempts=1, predicted=(0.2, 0.01), actual=(0.1, 0.01), considered=[])
    for system, good in (("2 x vllm", 20), ("vllm-router", 10), ("baton P->D", 5), ("baton", 45)):
        answers = [an_answer(ttft_s=0.1 if number < good else 9.0) for number in range(50)]
        results.runs["mixed", system] = [Run(answers, 0.0, [fate] * 50 if system == "baton" else [])] * 2
    report = Report(plan, results)
    (verdict,) = report.verdicts
    assert (verdict.other, verdict.word) == ("2 x vllm", "better")
    assert [(of.other, of.word, of.difference.value) for of in report.of_fixed] == [("vllm-router", "worse", -0.1)]
    assert "-10.0 points of attainment of baton P->D over vllm-router" in report.text()
    assert report.cells["mixed", "baton"].goodput_per_s == pytest.approx(4.5)
    assert "90.0 %" in report.text() and "| baton |" in report.markdown()
    assert "| mixed | TTFT | 100 | 100 % | 100 % | 2.00 |" in report.markdown()
    assert json.loads(json.dumps(report.to_json("a machine")))["cells"][3]["paths"] == {"P->D": 100}
