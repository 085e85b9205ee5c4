"""vLLM's metrics of real engines say what the engines have done, although most tokens pass vLLM's front by."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engine_program import run

MOVING = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:iteration_tokens_total_count",
    "vllm:prefix_cache_queries_total",
    "vllm:estimated_flops_per_gpu_total",
    "vllm:estimated_read_bytes_per_gpu_total",
    "vllm:estimated_write_bytes_per_gpu_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_count",
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target: Path = tmp_path_factory.mktemp("metrics") / "seen.json"
    run("measured_engines", str(target))
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def moved(seen: dict[str, Any], pool: str, name: str) -> float:
    of_pool = seen[pool]
    return float(of_pool["after"][name] - of_pool["before"].get(name, 0.0))


@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_figures_of_both_pools_move(seen: dict[str, Any], pool: str) -> None:
    assert [name for name in MOVING if moved(seen, pool, name) <= 0] == []


def test_tokens_are_counted_to_the_last_one(seen: dict[str, Any]) -> None:
    assert moved(seen, "decode", "vllm:generation_tokens_total") == seen["decode"]["tokens"]


def test_load_of_a_busy_engine_is_shown_and_gone_when_it_is_idle(seen: dict[str, Any]) -> None:
    most = seen["decode"]["most"]
    assert most["vllm:num_requests_running"] >= 2
    assert most["vllm:num_requests_waiting"] >= 1
    assert 0.5 < most["vllm:kv_cache_usage_perc"] <= 1
    after = seen["decode"]["after"]
    assert [after[name] for name in most] == [0, 0, 0]


def test_full_kv_cache_is_seen_as_preemptions(seen: dict[str, Any]) -> None:
    preempted = moved(seen, "decode", "vllm:num_preemptions_total")
    assert preempted >= 1
    assert moved(seen, "decode", "baton_engine_preemptions_total") == preempted


@pytest.mark.parametrize("pool", ["prefill", "decode"])
def test_prompt_that_comes_again_is_a_prefix_hit(seen: dict[str, Any], pool: str) -> None:
    assert moved(seen, pool, "vllm:prefix_cache_hits_total") > 0


def test_iterations_are_steps_and_not_what_came_between_two_statistics(seen: dict[str, Any]) -> None:
    """A step that only decodes has a token of each running request at most."""
    number = moved(seen, "decode", "vllm:iteration_tokens_total_count")
    tokens = moved(seen, "decode", "vllm:iteration_tokens_total_sum")
    num_prompt = moved(seen, "decode", "vllm:prompt_tokens_total")
    assert (tokens - num_prompt) / number <= seen["decode"]["most"]["vllm:num_requests_running"]


def test_life_of_kv_blocks_is_shown_once_they_are_evicted(seen: dict[str, Any]) -> None:
    assert moved(seen, "decode", "vllm:kv_block_lifetime_seconds_count") > 0
    assert moved(seen, "decode", "vllm:kv_block_idle_before_evict_seconds_count") > 0
