"""Real engines compute the prompt that is due first, also when another one has begun."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.fronts.pace import PACE_FILE_VARIABLE
from cluster.repository import REPO_ROOT

CASES = ("alone", "beside a decode", "beside a decode that is in a hurry", "by a pull")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target: Path = tmp_path_factory.mktemp("deadlines") / "seen.json"
    command = [sys.executable, "-m", "tests.engines.deadlines", str(target)]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        PACE_FILE_VARIABLE: str(target.with_name("pace")),
        "PYTHONPATH": str(REPO_ROOT),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    subprocess.run(command, env=environment, cwd=REPO_ROOT, check=True, timeout=280)
    return json.loads(target.read_text())


@pytest.mark.parametrize("case", CASES)
def test_urgent_prompt_gets_its_first_token_before_a_long_one_that_has_begun(seen: dict[str, Any], case: str) -> None:
    assert seen[case]["firsts"] == ["short", "long"]


@pytest.mark.parametrize("case", CASES)
def test_prompts_that_overtake_each_other_have_the_text_that_they_have_alone(seen: dict[str, Any], case: str) -> None:
    assert seen[case]["tokens"] == seen["right"]


def test_urgent_prefill_is_handed_over_before_a_long_one_that_has_begun(seen: dict[str, Any]) -> None:
    assert seen["prefills"] == ["short", "long"]


def test_request_in_a_hurry_generates_more_tokens_beside_the_same_prompts(seen: dict[str, Any]) -> None:
    patient, hurried = seen["generated beside"].values()
    assert hurried > patient


def test_engine_says_how_it_orders_prompts_and_bounds_its_steps(seen: dict[str, Any]) -> None:
    shape = seen["shape"]
    assert shape["by_deadline"] and shape["has_short_steps"]
    assert shape["max_step_tokens"] == seen["step tokens"]
