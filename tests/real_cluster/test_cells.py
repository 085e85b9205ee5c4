"""Two cells of one prefill and one decode worker each, on real engines: who answers while one drains or dies."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from bench.fronts.pace import PACE_FILE_VARIABLE, write_pace
from cluster.repository import REPO_ROOT
from tests.drills.processes import engine_core
from tests.drills.word_lists import WordList, word_list
from tests.real_cluster.service import (
    CHANGES,
    DECODE_PROCESS,
    PREFILL_PROCESS,
    SCHEDULER_PROCESS,
    Service,
    wait_for,
)

pytestmark = pytest.mark.full_matrix

CELLS = {"a", "b"}
NUM_PROMPT, NUM_TOKENS = 150, 20
STEP_S, NUM_STREAMED = 0.025, 960
"""Time of an engine's step, in seconds, and tokens of a stream: it lasts long enough for the cell to drain meanwhile,
and for `baton cells` to start twice.
"""
FOLLOWED_WITHIN_S = 20.0
"""Time in which the ingress notices that a cell drains or opens: it looks every DRAIN_LOOK_S."""
CHANGES_OF_CELLS: dict[str, Any] = {
    **CHANGES,
    "engine": {"distributed_executor_backend": "bench.fronts.executor.PacedExecutor"},
    "cells": {"names": sorted(CELLS)},
}


@pytest.fixture(scope="module")
def celled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("cells")
    write_pace(folder / "pace", STEP_S)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(PACE_FILE_VARIABLE, str(folder / "pace"))
        running = Service(folder, CHANGES_OF_CELLS)
    try:
        running.wait_until_ready()
        wait_for(lambda: states(running) == dict.fromkeys(sorted(CELLS), "open"), timeout_s=120)
        yield running
    finally:
        left = running.stop()
    assert not left


@pytest.fixture
def asking(celled: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{celled.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def states(service: Service) -> dict[str, str]:
    return dict(service.get("/readyz").json().get("cells", {}))


def cell_of_workers(service: Service) -> dict[str, str]:
    return {worker["worker"]: worker["cell"] for worker in service.of_operators("/baton/links").json()["workers"]}


def cell_of_last_answer(service: Service, cells: dict[str, str]) -> str:
    placement = service.of_operators("/baton/receipts?last=1").json()["receipts"][0]["placement"]
    (cell,) = {cells[worker] for worker in (placement["prefill"], placement["decode"]) if worker is not None}
    return cell


def answer(client: openai.OpenAI, words: WordList) -> str:
    """Raises openai.APIError."""
    completion = client.completions.create(
        model="baton-demo", prompt=words.prompt, max_tokens=NUM_TOKENS, temperature=0, extra_body={"ignore_eos": True}
    )
    return completion.choices[0].text


def by_cell(service: Service, client: openai.OpenAI, cells: dict[str, str], seeds: range) -> dict[str, WordList]:
    """A prompt that each cell has answered. No prompt of these seeds was asked before."""
    found: dict[str, WordList] = {}
    for seed in seeds:
        words = word_list(seed, NUM_PROMPT)
        assert answer(client, words) == words.answer(NUM_TOKENS)
        found.setdefault(cell_of_last_answer(service, cells), words)
        if found.keys() == CELLS:
            break
    return found


def baton_cells(service: Service, *arguments: str) -> str:
    command = [sys.executable, "-c", "from cluster.cli.main import main; main()", "cells", *arguments]
    done = subprocess.run(
        [*command, "--url", service.admin_url],
        cwd=REPO_ROOT,
        env=service.as_operator(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def row_of(table: str, cell: str) -> list[str]:
    (row,) = [line.split() for line in table.splitlines() if line.startswith(f"{cell} ")]
    return row


def test_prompt_comes_back_to_its_cell_and_drains_away_from_it_under_a_stream_that_goes_on(
    celled: Service, asking: openai.OpenAI
) -> None:
    cells = cell_of_workers(celled)
    assert sorted(cells.values()) == ["a", "a", "b", "b"]
    prompts = by_cell(celled, asking, cells, range(20))
    for cell, words in prompts.items():
        for _ in range(2):
            assert answer(asking, words) == words.answer(NUM_TOKENS)
            assert cell_of_last_answer(celled, cells) == cell

    words = prompts["a"]
    stream = asking.completions.create(
        model="baton-demo",
        prompt=words.prompt,
        max_tokens=NUM_STREAMED,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = next(stream).choices[0].text
    baton_cells(celled, "drain", "a", "--ray", ray_of(celled))
    wait_for(lambda: states(celled)["a"] == "draining", FOLLOWED_WITHIN_S)
    assert answer(asking, words) == words.answer(NUM_TOKENS)
    assert cell_of_last_answer(celled, cells) == "b"
    assert row_of(baton_cells(celled), "a")[:6] == ["a", "draining", "1", "1", "1", "1"]
    text += "".join(frame.choices[0].text for frame in stream)
    assert text == words.answer(NUM_STREAMED)
    assert cell_of_last_answer(celled, cells) == "a"
    assert celled.metric("baton_attempts_total") == celled.metric("baton_requests_total")

    baton_cells(celled, "open", "a", "--ray", ray_of(celled))
    wait_for(lambda: states(celled)["a"] == "open", FOLLOWED_WITHIN_S)
    assert by_cell(celled, asking, cells, range(20, 40)).keys() == CELLS


def test_other_cell_answers_for_one_that_has_lost_its_workers_and_its_scheduler(
    celled: Service, asking: openai.OpenAI
) -> None:
    cells = cell_of_workers(celled)
    words = by_cell(celled, asking, cells, range(40, 60))["a"]
    for name in (PREFILL_PROCESS, DECODE_PROCESS):
        worker = celled.process(f"{name}-a")
        engine = engine_core(worker)
        worker.kill()
        engine.kill()
    assert answer(asking, words) == words.answer(NUM_TOKENS)
    assert cell_of_last_answer(celled, cells) == "b"

    celled.process(f"{SCHEDULER_PROCESS}-a").kill()
    for _ in range(3):
        assert answer(asking, words) == words.answer(NUM_TOKENS)
        assert cell_of_last_answer(celled, cells) == "b"
    assert states(celled)["a"] in ("away", "not ready")
    assert celled.is_ready()
    assert row_of(baton_cells(celled), "b")[:2] == ["b", "open"]


def ray_of(service: Service) -> str:
    """The address of the service's Ray, of which there may be several on this machine."""
    (raylet,) = service.ray_processes("raylet")
    (address,) = [name.partition("=")[2] for name in raylet.cmdline() if name.startswith("--gcs-address=")]
    return address
