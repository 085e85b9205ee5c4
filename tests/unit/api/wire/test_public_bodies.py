from typing import Any

import msgspec
import pytest

from api.wire.public_bodies import public, public_frame


def frame(payload: object) -> str:
    return f"data: {msgspec.json.encode(payload).decode()}\n\n"


def test_what_vllm_says_of_its_engines_is_dropped() -> None:
    body = {"id": "1", "kv_transfer_params": {"remote_host": "10.0.0.1"}, "metrics": {}, "ec_transfer_params": None}
    assert public(body) == {"id": "1"}


def test_nulls_that_openai_leaves_out_are_absent() -> None:
    assert public({"id": "1", "stop_reason": None, "prompt_logprobs": None}) == {"id": "1"}


@pytest.mark.parametrize("name", ["content", "refusal", "logprobs", "finish_reason", "service_tier"])
def test_nulls_of_openai_s_schema_stay(name: str) -> None:
    assert public({name: None}) == {name: None}


def test_choices_are_cleaned_too() -> None:
    choice = {"index": 0, "token_ids": None, "message": {"content": None, "routed_experts": [1], "tool_calls": []}}
    cleaned = {"index": 0, "message": {"content": None, "tool_calls": []}}
    assert public({"choices": [choice]}) == {"choices": [cleaned]}


def test_token_that_is_named_like_an_internal_key_survives_in_logprobs() -> None:
    logprobs = {"tokens": ["metrics"], "top_logprobs": [{"metrics": -0.1, "token_ids": -2.0}], "text_offset": None}
    body = {"choices": [{"logprobs": logprobs, "metrics": 1}]}
    assert public(body) == {"choices": [{"logprobs": logprobs}]}


def test_logprobs_of_a_chat_have_those_of_a_refusal_too() -> None:
    body: dict[str, Any] = {"choices": [{"logprobs": {"content": []}}]}
    assert public(body) == {"choices": [{"logprobs": {"content": [], "refusal": None}}]}


def test_empty_and_false_values_stay() -> None:
    body = {"content": "", "n": 0, "store": False, "tool_calls": []}
    assert public(body) == body


def test_stream_frame_loses_the_nulls_that_vllm_adds() -> None:
    chunk = {"id": "1", "choices": [{"index": 0, "finish_reason": None, "stop_reason": None, "token_ids": None}]}
    assert public_frame(frame(chunk)) == 'data: {"id":"1","choices":[{"index":0,"finish_reason":null}]}\n\n'


def test_stop_reason_that_is_there_stays() -> None:
    chunk = {"index": 0, "stop_reason": "END"}
    assert public_frame(frame(chunk)) == frame(chunk)


def test_text_that_looks_like_such_a_null_stays() -> None:
    chunk = {"index": 0, "content": 'he wrote {"a":1,"stop_reason":null,"token_ids":null}'}
    assert public_frame(frame(chunk)) == frame(chunk)
