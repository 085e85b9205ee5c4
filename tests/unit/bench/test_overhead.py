from pathlib import Path

import pytest

from bench.fronts import census
from bench.fronts.census import Process, role, used_s
from bench.fronts.cost import Work, cost, idle_ms_per_s, percentile, total
from bench.fronts.pace import Pace, write_pace
from bench.fronts.prompts import Prompts
from cluster.repository import REPO_ROOT

IDLE = Work(wall_s=10.0, requests=0, tokens=0, cpu_s={"ingress": 0.1})
"""10 ms per second."""


def test_a_requests_cost_and_a_tokens_cost_come_apart_and_idle_time_is_in_neither() -> None:
    short = Work(wall_s=1.0, requests=100, tokens=100, cpu_s={"ingress": 0.01 + 100 * 0.002})
    long = Work(wall_s=2.0, requests=10, tokens=1010, cpu_s={"ingress": 0.02 + 10 * 0.002 + 1000 * 50e-6})
    both = cost(short, long, IDLE)
    assert both.request_ms["ingress"] == pytest.approx(2.0)
    assert both.token_us["ingress"] == pytest.approx(50.0)


def test_a_role_without_idle_time_is_charged_in_full() -> None:
    short = Work(wall_s=1.0, requests=10, tokens=10, cpu_s={"router": 0.02})
    long = Work(wall_s=1.0, requests=10, tokens=110, cpu_s={"router": 0.03})
    assert cost(short, long, IDLE).token_us["router"] == pytest.approx(100.0)


def test_works_add_up() -> None:
    work = total([Work(1.0, 2, 3, {"a": 1.0}), Work(10.0, 20, 30, {"a": 2.0, "b": 4.0})])
    assert work == Work(11.0, 22, 33, {"a": 3.0, "b": 4.0})


def test_idle_is_per_second() -> None:
    assert idle_ms_per_s(IDLE) == {"ingress": pytest.approx(10.0)}


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 50), (99, 99), (100, 100)])
def test_percentile_is_one_of_the_values(percent: int, value: int) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("VLLM::EngineCore", census.ENGINE),
        ("ray::ServeReplica:baton:PrefillWorker.prefill", "PrefillWorker"),
        ("ray::SERVE_REPLICA::baton#DecodeWorker#nu5:ServeReplica:baton:DecodeWorker.__init__", "DecodeWorker"),
        ("ray::ServeController.listen_for_change", "ServeController"),
        ("/site-packages/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp", "gcs_server"),
        ("/usr/bin/python -m vllm", "API server"),
    ],
)
def test_roles_by_title(title: str, expected: str) -> None:
    assert role(title, "API server") == expected


def test_use_is_by_system_and_role_and_counts_new_processes_from_their_start() -> None:
    old, new = Process(1, 5, "baton", "Ingress"), Process(2, 9, "baton", "Ingress")
    other = Process(3, 5, "vllm", "API server")
    reused = Process(1, 50, "baton", "Ingress")
    assert used_s({old: 1.0, other: 1.0}, {old: 3.0, new: 0.5, other: 1.0}) == {
        "baton": {"Ingress": 2.5},
        "vllm": {"API server": 0.0},
    }
    assert used_s({old: 1.0}, {reused: 0.25}) == {"baton": {"Ingress": 0.25}}


def test_a_process_that_changed_its_title_keeps_what_it_had_used() -> None:
    assert used_s({Process(1, 5, "baton", "IDLE"): 1.0}, {Process(1, 5, "baton", "Ingress"): 1.5}) == {
        "baton": {"Ingress": 0.5}
    }


def test_readers_see_each_new_pace(tmp_path: Path) -> None:
    file = tmp_path / "pace"
    write_pace(file, 0.0)
    pace = Pace(file)
    assert pace.step_s(500) == 0.0
    write_pace(file, 0.02)
    assert pace.step_s(500) == 0.02
    write_pace(file, 0.02, 1e-4)
    assert pace.step_s(500) == pytest.approx(0.07)


def test_prompts_are_unique_and_repeatable() -> None:
    model = str(REPO_ROOT / "conf/models/baton-demo")
    first = Prompts(model, tokens=500)
    prompts = first.take(20)
    assert len({prompt[:20] for prompt in prompts}) == 20
    assert Prompts(model, tokens=500).take(20) == prompts
