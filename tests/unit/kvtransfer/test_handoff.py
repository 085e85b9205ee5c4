from typing import Any

import msgspec
import pytest

from cluster.messages.ids import WorkerId
from kvtransfer.handoff import LENDER, PULL_DEADLINE, KVHandoff, PrefillResult, prompt_digest
from tests.unit.factories import a_handoff, a_prefill_result, handoff_params

P0 = WorkerId("p0")
REQUIRED = [name for name in handoff_params() if name.startswith("remote_")]


def test_handoff_knows_its_tokens() -> None:
    handoff = KVHandoff.from_engine(P0, handoff_params(remote_block_ids=[[3, 4], [5]], remote_num_tokens=80))
    assert handoff.num_tokens == 80


def test_engine_gets_back_what_the_other_engine_returned_and_looks_nowhere_else() -> None:
    ours = {"max_load_tokens": 0, PULL_DEADLINE: 5.0, LENDER: "p0"}
    assert a_handoff().to_engine(5.0) == handoff_params() | ours


def test_engine_that_changes_its_parameters_does_not_change_the_handoff() -> None:
    handoff = a_handoff()
    handoff.to_engine(5.0).clear()
    assert handoff.params == handoff_params()


@pytest.mark.parametrize("key", REQUIRED)
def test_handoff_without_a_required_key_is_refused_by_name(key: str) -> None:
    params = handoff_params()
    del params[key]
    with pytest.raises(ValueError, match=rf"missing: {key}\)"):
        KVHandoff.from_engine(P0, params)


@pytest.mark.parametrize("params", [None, {}], ids=str)
def test_engine_that_returns_no_parameters_gives_no_handoff(params: dict[Any, Any] | None) -> None:
    with pytest.raises(ValueError, match="no usable handoff"):
        KVHandoff.from_engine(P0, params)


def test_handoff_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="remote_block_ids"):
        KVHandoff.from_engine(P0, handoff_params(remote_block_ids=[]))


def test_prefill_result_survives_the_wire() -> None:
    result = a_prefill_result()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=PrefillResult) == result


def test_handoff_of_a_prompt_is_recognized_in_a_request_that_goes_on_after_it() -> None:
    prompt = list(range(40))
    handoff = a_handoff(num_tokens=len(prompt))
    assert handoff.digest_of([*prompt, 7]) == handoff.digest_of(prompt) == prompt_digest(prompt)


@pytest.mark.parametrize("other", [[1, 2, 4], [1, 2], [1, 2, 3, 0], [3, 2, 1], []], ids=str)
def test_other_prompts_have_other_digests(other: list[Any]) -> None:
    assert prompt_digest(other) != prompt_digest([1, 2, 3])
