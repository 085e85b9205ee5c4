"""Tenants share the KV blocks of a public prefix on real engines, and no others."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engine_program import run


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("public")
    run("public_blocks", str(folder))
    return json.loads((folder / "seen.json").read_text())


def cached(seen: dict[str, Any], step: str) -> tuple[int, int, int]:
    """The tokens of the prompt from the engine's prefix cache, from another engine, and from a tier."""
    return seen[step]["local"], seen[step]["pulled"], seen[step]["offloaded"]


def test_tenants_share_the_public_blocks_and_no_private_ones(seen: dict[str, Any]) -> None:
    assert cached(seen, "one") == (0, 0, 0)
    assert cached(seen, "two") == (seen["public"], 0, 0), "though both have sent the same text"
    assert cached(seen, "two, another tail") == (seen["public"], 0, 0)


def test_tenant_that_does_not_share_finds_no_public_block(seen: dict[str, Any]) -> None:
    assert cached(seen, "alone") == (0, 0, 0)
    assert cached(seen, "one, not sharing any more") == (0, 0, 0)


def test_tenant_finds_its_own_private_blocks(seen: dict[str, Any]) -> None:
    whole = (seen["prompt"] - 1) // seen["block_size"] * seen["block_size"]
    assert cached(seen, "one again") == (whole, 0, 0)


def test_index_finds_what_the_engine_finds(seen: dict[str, Any]) -> None:
    whole, public = seen["prompt"] // seen["block_size"], seen["public"] // seen["block_size"]
    assert seen["index of one"] == [whole, whole]
    assert seen["index of three"] == [public, public]
    assert seen["index of another that does not share"] == [0, 0]


def test_public_blocks_are_found_in_a_tier(seen: dict[str, Any]) -> None:
    assert cached(seen, "three, from a tier") == (0, 0, seen["public"])


def test_public_blocks_are_handed_over_and_found_on_both_engines(seen: dict[str, Any]) -> None:
    _, pulled, _ = cached(seen, "one, handed over")
    assert pulled >= seen["prompt"] - 1
    for step in ("two, after the handover", "two, on the prefill engine"):
        assert cached(seen, step) == (seen["public"], 0, 0)


def test_resumed_request_finds_its_blocks_on_another_engine(seen: dict[str, Any]) -> None:
    local, _, _ = cached(seen, "one, resumed on the prefill engine")
    assert local >= seen["public"] + seen["block_size"]


def test_answers_are_the_same_whose_blocks_they_are_from(seen: dict[str, Any]) -> None:
    steps = ("one", "two", "alone", "one again", "three, from a tier", "one, handed over", "two, after the handover")
    assert [seen[step]["answer"][:20] for step in steps] == [seen["one"]["answer"][:20]] * len(steps)
