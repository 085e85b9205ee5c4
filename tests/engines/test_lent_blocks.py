"""What the engines themselves do with handoffs that are freed, late or of another prompt."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from kvtransfer.verify import MAX_TOLERANCE
from tests.engines.engine_program import run

ROUNDING = 0.1
POOLS = ("prefill", "decode")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target: Path = tmp_path_factory.mktemp("lent") / "seen.json"
    # The engine reports a pull of freed blocks as an error: that is tried here
    run("lent_blocks", str(target), VLLM_LOGGING_LEVEL="CRITICAL")
    return json.loads(target.read_text())


def test_handoff_in_time_is_pulled_and_agrees_with_the_prefill_engine(seen: dict[str, Any]) -> None:
    step = seen["steps"]["in time"]
    assert step["tokens"] == seen["right"]
    assert (step["sources"]["pulled"], step["end"]) == (1500, "read")
    assert step["distance"] < ROUNDING


def test_blocks_of_another_prompt_are_noticed(seen: dict[str, Any]) -> None:
    step = seen["steps"]["of blocks that hold another prompt"]
    assert step["sources"]["pulled"] == 1500
    assert step["distance"] > MAX_TOLERANCE


def test_pull_that_ends_too_late_is_computed_and_leaves_nothing_in_the_cache(seen: dict[str, Any]) -> None:
    step = seen["steps"]["of such blocks, too late"]
    assert step["tokens"] == seen["right"]
    assert step["sources"]["pulled"] == 0
    assert seen["steps"]["after it"]["tokens"] == seen["right"]


def test_blocks_are_freed_by_their_own_engine_in_well_under_a_second(seen: dict[str, Any]) -> None:
    assert statistics.median(seen["freed_s"]) < 1.0


def test_blocks_that_nobody_asks_for_are_freed_in_the_end(seen: dict[str, Any]) -> None:
    assert seen["kept"]
    assert (seen["unused_end"], seen["usage"]) == ("expired", 0.0)


def test_wrong_copy_that_was_forgotten_is_computed_and_answered_right(seen: dict[str, Any]) -> None:
    step = seen["steps"]["wrong copy, forgotten"]
    assert step["tokens"] == seen["right"]
    assert step["sources"]["computed"] == 1500


def test_decode_engine_forgets_one_handoff_and_nothing_else(seen: dict[str, Any]) -> None:
    before, after = seen["forgotten"]["cached"], seen["forgotten"]["without one handoff"]
    assert min(before.values()) > 1400
    assert after == before | {"bad, too": 0}


def test_decode_engine_forgets_one_lender_with_what_was_computed_on_top(seen: dict[str, Any]) -> None:
    forgotten = seen["forgotten"]
    assert forgotten["of the good lender"] == forgotten["cached"]["good, next"]
    # The running answer has computed its part of the chat anew, and the next turn has not been asked for since.
    assert forgotten["of the next turn"] < forgotten["cached"]["bad, next"]


def test_answer_that_uses_forgotten_blocks_begins_anew_and_others_go_on(seen: dict[str, Any]) -> None:
    assert seen["forgotten"]["answers"] == {"good": True, "bad": True}
    assert seen["forgotten"]["preempted"] == 1
    assert seen["forgotten"]["of the answer that began anew"] > 1400


def test_prefill_engine_forgets_everything_at_once_although_blocks_are_lent(seen: dict[str, Any]) -> None:
    cleared = seen["cleared"]
    assert cleared["local"] == 0
    assert cleared["lent"]["sources"]["pulled"] == 1500
    assert cleared["lent"]["distance"] < ROUNDING


def test_engines_say_what_they_did_until_their_first_tokens(seen: dict[str, Any]) -> None:
    timeline, pull = seen["timeline"], seen["timeline"]["pull"]
    prefill, decode = ({name: (begin, end, notes) for name, begin, end, _, notes in timeline[of]} for of in POOLS)
    assert list(prefill) == ["receive", "engine_queue", "prefill", "output"]
    assert list(decode) == ["receive", "engine_queue", "first_decode", "output"]
    assert (prefill["prefill"][2]["tokens"], decode["first_decode"][2]["tokens"]) == (1500, 1)
    for begin, end, _ in (*prefill.values(), *decode.values()):
        assert 0.0 <= begin <= end < 60.0
    # The engines met with this pull. It is over when the first step begins.
    assert pull["num_bytes"] > 1_000_000
    assert 0.0 < pull["transfer_s"] <= pull["seconds"]
    assert pull["connect_s"] > 0.0
    assert pull["connect_s"] + pull["seconds"] <= decode["first_decode"][0]
