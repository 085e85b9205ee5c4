"""KV blocks that left the engine's memory come back from DRAM and from disk, and are reported as what they are."""

import json
from typing import Any

import pytest

from tests.engines.engine_program import run

BLOCK_TOKENS = 32
STEPS_OF_FIRST = (
    "computed",
    "from dram",
    "handed over",
    "handed over from dram",
    "distrusted",
    "handoff lost",
    "from disk",
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tiers")
    run("tiered_engines", str(folder))
    return json.loads((folder / "seen.json").read_text())


def sources_of(seen: dict[str, Any], step: str, expected: dict[str, int], prompt: str = "first") -> None:
    nothing = {"computed": 0, "local": 0, "pulled": 0, "offloaded": 0}
    assert seen["steps"][step]["sources"] == nothing | expected
    assert sum(expected.values()) == seen["prompts"][prompt]


def whole_blocks(seen: dict[str, Any], prompt: str = "first") -> dict[str, int]:
    num_tokens = seen["prompts"][prompt]
    offloaded = num_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    return {"offloaded": offloaded, "computed": num_tokens - offloaded}


def test_prompt_that_the_engine_forgot_comes_back_from_dram(seen: dict[str, Any]) -> None:
    sources_of(seen, "computed", {"computed": seen["prompts"]["first"]})
    sources_of(seen, "from dram", whole_blocks(seen))
    sources_of(seen, "prefill from dram", whole_blocks(seen))


def test_prompt_comes_back_from_disk_after_the_engine_was_killed(seen: dict[str, Any]) -> None:
    sources_of(seen, "from disk", whole_blocks(seen))


def test_handoff_is_pulled_although_the_tiers_have_the_prompt(seen: dict[str, Any]) -> None:
    sources_of(seen, "handed over", {"pulled": seen["prompts"]["first"]})


def test_blocks_from_dram_can_be_handed_over_and_blocks_handed_over_go_to_dram(seen: dict[str, Any]) -> None:
    sources_of(seen, "handed over from dram", {"pulled": seen["prompts"]["first"]})
    sources_of(seen, "second handed over", {"pulled": seen["prompts"]["second"]}, "second")
    sources_of(seen, "second from dram", whole_blocks(seen, "second"), "second")


def test_leases_end_with_tiers_as_without(seen: dict[str, Any]) -> None:
    assert seen["ended_leases"] == ["read"] * 3


def test_nothing_comes_back_from_any_tier_that_cannot_be_trusted_any_more(seen: dict[str, Any]) -> None:
    sources_of(seen, "distrusted", {"computed": seen["prompts"]["first"]})


def test_handoff_that_is_lost_is_computed_and_reported_so(seen: dict[str, Any]) -> None:
    sources_of(seen, "handoff lost", {"computed": seen["prompts"]["first"]})


def test_answer_is_the_same_wherever_the_prompt_comes_from(seen: dict[str, Any]) -> None:
    answers = [seen["steps"][step]["answer"] for step in STEPS_OF_FIRST]
    assert seen["codes"]["first"] in answers[0]
    assert answers == [answers[0]] * len(answers)
    handed_over, from_dram = (seen["steps"][step] for step in ("second handed over", "second from dram"))
    assert seen["codes"]["second"] in handed_over["answer"]
    assert handed_over["answer"] == from_dram["answer"]


@pytest.mark.parametrize(("step", "tier"), [("from dram", "host"), ("handed over", "p2p"), ("from disk", "disk")])
def test_engine_s_metrics_tell_the_tiers_apart(seen: dict[str, Any], step: str, tier: str) -> None:
    assert seen["steps"][step]["hits"] == {
        tier: sum(seen["steps"][step]["sources"][s] for s in ("pulled", "offloaded"))
    }


def test_shared_memory_has_no_name_that_a_killed_engine_could_leave(seen: dict[str, Any]) -> None:
    assert seen["names_in_memory"] == []
