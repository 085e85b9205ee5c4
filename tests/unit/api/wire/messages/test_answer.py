"""Messages and events in Anthropic's shape."""

import json
from typing import Any

import pytest

from api.wire.messages.answer import MessageEnding, stop_reason_of, usage_of

NO_USAGE = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}


@pytest.mark.parametrize(
    ("translated", "finish_reason", "num_tokens", "told"),
    [
        ("end_turn", "stop", 3, "end_turn"),
        ("stop_sequence", "stop", 3, "stop_sequence"),
        ("tool_use", "tool_calls", 3, "tool_use"),
        ("max_tokens", "length", 8, "max_tokens"),
        ("max_tokens", "length", 7, "model_context_window_exceeded"),
        (None, "content_filter", 3, "refusal"),
        ("tool_use", "content_filter", 3, "refusal"),
        (None, None, 3, "end_turn"),
    ],
)
def test_stop_reason(translated: str | None, finish_reason: str | None, num_tokens: int, told: str) -> None:
    assert stop_reason_of(translated, finish_reason, num_tokens, 8) == told


@pytest.mark.parametrize("usage", [None, {}, {"input_tokens": None, "other": 5}])
def test_usage_has_all_counts(usage: Any) -> None:
    assert usage_of(usage) == NO_USAGE


def frame(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def sent(ending: MessageEnding, event: dict[str, Any]) -> Any:
    told = ending.frame(frame(event), 9)
    assert told is not None
    name, data, *rest = told.decode().split("\n")
    assert (name, rest) == (f"event: {event['type']}", ["", ""])
    return json.loads(data.removeprefix("data: "))


def test_message_starts_with_its_id_and_usage() -> None:
    event = {"type": "message_start", "message": {"id": "chatcmpl-x", "content": [], "usage": {"input_tokens": 0}}}
    message = sent(MessageEnding("c", 8), event)["message"]
    assert (message["id"], message["usage"]) == ("msg_c", NO_USAGE | {"input_tokens": 9})


def test_thought_starts_with_an_empty_signature() -> None:
    block = {"type": "thinking", "thinking": ""}
    told = sent(MessageEnding("c", 8), {"type": "content_block_start", "index": 0, "content_block": block})
    assert told["content_block"] == block | {"signature": ""}


def test_stream_that_was_cut_ends_as_refused() -> None:
    ending = MessageEnding("c", 8)
    ending.finish_reason = "content_filter"
    event = {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 3}}
    assert sent(ending, event) == {
        "type": "message_delta",
        "delta": {"stop_reason": "refusal", "stop_sequence": None},
        "usage": NO_USAGE | {"output_tokens": 3},
    }


@pytest.mark.parametrize("kind", ["content_block_delta", "content_block_stop", "message_stop"])
def test_other_events_are_passed_on(kind: str) -> None:
    passed = frame({"type": kind, "index": 0})
    assert MessageEnding("c", 8).frame(passed, 9) == passed.encode()


def test_error_of_the_translator_is_no_event() -> None:
    assert MessageEnding("c", 8).frame(frame({"type": "error", "error": {"message": "secret"}}), 9) is None
