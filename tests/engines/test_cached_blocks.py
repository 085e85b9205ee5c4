"""The prefix index says of real engines what they cache."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engine_program import run


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("cached")
    run("cached_blocks", str(folder), PYTHONHASHSEED="7")  # an operator's, which must not matter
    return json.loads((folder / "seen.json").read_text())


def in_memory(num_blocks: int) -> list[int]:
    return [num_blocks, num_blocks]


def test_prompt_is_found_by_the_hashes_of_the_ingress(seen: dict[str, Any]) -> None:
    assert seen["prompt"] == in_memory(seen["whole"])


def test_answer_is_found_too_but_for_its_end(seen: dict[str, Any]) -> None:
    """The last token was never computed on."""
    assert seen["prompt and answer"] == in_memory((1000 + 100 - 1) // seen["block_size"])


def test_prompt_of_one_tenant_is_not_another_s(seen: dict[str, Any]) -> None:
    assert seen["of nobody"] == [0, 0]
    assert seen["of nobody, after it was asked for"] == in_memory(seen["whole"])


def test_blocks_in_dram_and_on_disk_are_known(seen: dict[str, Any]) -> None:
    assert seen["in tiers"] == [True, True]
    assert seen["in tiers alone"] == [seen["whole"], 0]


def test_prompt_that_was_handed_over_is_found_on_both_workers(seen: dict[str, Any]) -> None:
    assert seen["pulled"] == seen["pulled from"] == in_memory(seen["whole"])


def test_evicted_prompt_is_not_found_any_more(seen: dict[str, Any]) -> None:
    assert seen["evicted"] == [0, 0]
    assert seen["exact after evictions"]


def test_prompt_whose_answer_called_tools_outlasts_others_where_a_share_is_kept(seen: dict[str, Any]) -> None:
    assert seen["kept"] >= seen["found after others"] == seen["whole"]
    assert seen["evicted, not kept"] == [0, 0]


def test_snapshot_makes_up_for_a_lost_message(seen: dict[str, Any]) -> None:
    assert seen["after a gap"] == [in_memory(seen["whole"])] * 2
    assert seen["exact after a gap"]


def test_nothing_is_found_that_cannot_be_trusted(seen: dict[str, Any]) -> None:
    assert seen["distrusted"] == seen["distrusted, after the engine went on"] == [0, 0]
    assert seen["anew"] == in_memory(seen["whole"])


def test_index_is_exact_in_the_end(seen: dict[str, Any]) -> None:
    assert seen["exact at last"] == [True, True]
