"""The events of a response: OpenAI's order, every one valid, and together the response itself."""

from copy import deepcopy
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from api.wire.responses.events import Event, ResponseWriter
from api.wire.safety.moderation_results import NotModerated, completion_moderation, moderation_chunk, result_of
from tests.unit.chat_chunks import Chunk, answer, call, chunk, usage

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "in_progress",
    "completed_at": None,
    "error": None,
    "incomplete_details": None,
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": None,
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def written(chunks: list[Chunk]) -> tuple[list[Event], dict[str, Any]]:
    numbers = count(1)
    writer = ResponseWriter(deepcopy(RESPONSE), lambda prefix: f"{prefix}_{next(numbers)}")
    events = [*writer.begin(), *(event for one in chunks for event in writer.take(one)), *writer.end(2)]
    return events, writer.response


def kinds(events: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text_is_told_in_openais_order() -> None:
    events, response = written(answer("Hello", " there"))
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert response["status"] == "completed" and response["completed_at"] == 2
    assert response["output"][0]["content"][0]["text"] == "Hello there"
    assert response["usage"]["total_tokens"] == 7


def test_what_is_thought_said_and_called_are_items_of_their_own() -> None:
    chunks = [
        chunk(role="assistant", reasoning="Hm"),
        chunk(content="Let me look."),
        call(0, id="call_a", name="look"),
        call(0, '{"at":'),
        call(0, ' "it"}'),
        call(1, "{}", id="call_b", name="hear"),
        chunk("tool_calls"),
        usage(),
    ]
    events, response = written(chunks)
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["status"] for item in response["output"]] == ["completed"] * 4
    called = response["output"][2]
    assert (called["call_id"], called["name"], called["arguments"]) == ("call_a", "look", '{"at": "it"}')
    assert [event["output_index"] for event in events if event["type"] == "response.output_item.done"] == [0, 1, 2, 3]


def test_answer_that_is_too_long_is_incomplete() -> None:
    events, response = written(answer("Once upon", finish_reason="length"))
    assert kinds(events)[-1] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("chunks", "of_item"),
    [
        ([chunk(role="assistant", content="Once"), chunk(content=" upon")], ["output_text.done", "content_part.done"]),
        (
            [chunk(role="assistant", reasoning="Once"), chunk(reasoning=" upon")],
            ["reasoning_text.done", "content_part.done"],
        ),
        ([call(0, id="call_a", name="f"), call(0, "Once upon")], ["function_call_arguments.done"]),
    ],
    ids=["text", "reasoning", "tool call"],
)
def test_answer_that_is_cut_by_a_filter_is_incomplete_with_what_was_released(
    chunks: list[Chunk], of_item: list[str]
) -> None:
    events, response = written([*chunks, chunk("content_filter"), usage()])
    last = kinds(events).index(of_item[0])
    assert kinds(events)[last:] == [*of_item, "output_item.done", "incomplete"]
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": "content_filter"}
    (item,) = response["output"]
    assert item["status"] == "incomplete"
    assert (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]) == "Once upon"
    assert response["usage"]["total_tokens"] == 7


def test_nothing_comes_after_a_filter_has_cut_the_answer() -> None:
    cut = [chunk(role="assistant", content="Once"), chunk("content_filter")]
    more = [chunk(content=" upon"), chunk(reasoning="Hm"), call(0, "{}", id="call_a", name="f"), chunk("stop")]
    assert written([*cut, *more, usage()]) == written([*cut, usage()])


def test_answer_that_is_cut_before_its_first_text_has_no_items() -> None:
    events, response = written([chunk("content_filter"), usage()])
    assert kinds(events) == ["created", "in_progress", "incomplete"]
    assert response["output"] == []


def test_moderation_is_a_part_of_the_response_at_its_end() -> None:
    writer = a_writer()
    events = writer.begin()
    error = NotModerated("timeout", "too slow")
    chunks = answer("Once", finish_reason="content_filter")
    told = moderation_chunk(chunk(), completion_moderation("baton-safety", [result_of({}, set())], error))
    for one in (*chunks[:-1], told, chunks[-1]):
        events += writer.take(one)
    *_, last = writer.end(2)
    assert EVENT.validate_python(last).response.moderation.output.code == "timeout"


def test_generation_that_breaks_off_has_failed_with_what_there_is() -> None:
    events, response = written([chunk(role="assistant", content="Once")])
    assert kinds(events)[-1] == "failed"
    assert response["error"]["code"] == "server_error"
    assert (response["output"][0]["status"], response["output"][0]["content"][0]["text"]) == ("incomplete", "Once")


def test_log_probabilities_are_told() -> None:
    told = {"content": [{"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top_logprobs": []}]}
    events, response = written([chunk(content="Hi", logprobs=told), chunk("stop"), usage()])
    shown = msgspec.json.decode(msgspec.json.encode(response))
    assert shown["output"][0]["content"][0]["logprobs"][0]["token"] == "Hi"
    for event in events:
        EVENT.validate_json(msgspec.json.encode(event), strict=False)


pieces = st.one_of(
    st.builds(lambda text: chunk(content=text), st.text(min_size=1, max_size=5)),
    st.builds(lambda text: chunk(reasoning=text), st.text(min_size=1, max_size=5)),
    st.builds(lambda number, text: call(number, text), st.integers(0, 2), st.text(max_size=3)),
    st.builds(lambda number: call(number, id=f"call_{number}", name="f"), st.integers(0, 2)),
)


@given(st.lists(pieces, max_size=12), st.sampled_from(["stop", "length", "tool_calls", "content_filter", None]))
def test_events_are_valid_numbered_and_add_up_to_the_response(
    chunks: list[dict[str, Any]], finish_reason: str | None
) -> None:
    events, response = written([*chunks, chunk(finish_reason), usage()])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENT.validate_python(event)
    Response.model_validate(response)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == response["output"] == events[-1]["response"]["output"]
    texts: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
    for number, item in enumerate(done):
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert texts.get(number, "") == text


def a_writer() -> ResponseWriter:
    numbers = count(1)
    return ResponseWriter(deepcopy(RESPONSE), lambda prefix: f"{prefix}_{next(numbers)}")


@given(st.lists(pieces, max_size=12), st.booleans(), st.sampled_from(["fail", "cancel"]))
def test_whoever_knows_the_events_so_far_can_end_the_response(
    chunks: list[dict[str, Any]], is_background: bool, end: str
) -> None:
    writer = a_writer()
    told = [*(writer.queue() if is_background else ()), *writer.begin()]
    told += [event for one in chunks for event in writer.take(one)]
    restored = ResponseWriter.restored(deepcopy(RESPONSE), deepcopy(told), lambda prefix: "never")
    if end == "cancel":
        assert restored.cancel() == writer.cancel()
    else:
        assert restored.fail("lost") == writer.fail("lost")
    assert restored.response == writer.response


def test_background_response_waits_and_then_begins() -> None:
    writer = a_writer()
    events = [*writer.queue(), *writer.begin(), *writer.take(chunk(content="Hi")), *writer.end(2)]
    assert kinds(events[:3]) == ["created", "queued", "in_progress"]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_cancelled_response_says_so_in_an_event_that_clients_know() -> None:
    writer = a_writer()
    writer.begin()
    writer.take(chunk(content="Hel"))
    *_, last = writer.cancel()
    EVENT.validate_python(last)
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert last["response"]["output"][0]["status"] == "incomplete"
