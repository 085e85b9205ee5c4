"""A Responses request becomes the request of a chat completion."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.responses.as_chat import LOGPROBS, chat_body, chat_messages, num_parts
from cluster.errors import InvalidRequest


def said(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def called(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}


def returned(call_id: str, output: Any = "it") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def body(**request: Any) -> dict[str, Any]:
    return chat_body(request, "m", [said("user", "Hello")])


def test_messages_keep_their_order_after_the_instructions() -> None:
    items = [said("user", "One"), said("assistant", "Two"), said("developer", "Three")]
    assert chat_messages(items, "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "developer", "content": "Three"},
    ]


def test_what_an_assistant_thinks_says_and_calls_in_a_row_is_one_message() -> None:
    items = [thought("Hm"), said("assistant", "Let me look."), called("a"), called("b"), returned("a"), returned("b")]
    assistant, *results = chat_messages(items, None)
    assert (assistant["reasoning"], assistant["content"]) == ("Hm", "Let me look.")
    assert [call["id"] for call in assistant["tool_calls"]] == ["a", "b"]
    assert [result["tool_call_id"] for result in results] == ["a", "b"]


@pytest.mark.parametrize("items", [[returned("b")], [called("a"), returned("b")], [returned("b"), called("b")]])
def test_result_without_its_call_is_refused_with_its_name(items: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match="No tool call found for function call output with call_id b"):
        chat_messages(items, None)


def test_two_answers_in_a_row_are_two_messages() -> None:
    items = [said("assistant", "One"), said("assistant", "Two"), thought("Hm"), said("assistant", "Three")]
    assert [message["content"] for message in chat_messages(items, None)] == ["One", "Two", "Three"]


def test_images_and_several_texts_stay_parts() -> None:
    image = {"type": "input_image", "image_url": "data:,", "detail": "low"}
    item = said("user", "One", "Two") | {"content": [*said("user", "One", "Two")["content"], image]}
    (message,) = chat_messages([item], None)
    assert [part["type"] for part in message["content"]] == ["text", "text", "image_url"]
    assert message["content"][2]["image_url"] == {"url": "data:,", "detail": "low"}


def with_results_of_calls(items: list[Any]) -> list[Any]:
    """The items without results whose calls are not before them."""
    names = [item["call_id"] for item in items if item["type"] == "function_call"]
    first = {name: items.index(called(name)) for name in names}
    return [
        item
        for at, item in enumerate(items)
        if item["type"] != "function_call_output" or first.get(item["call_id"], at) < at
    ]


items = st.lists(
    st.one_of(
        st.builds(said, st.sampled_from(["user", "assistant", "system", "developer"]), st.text(min_size=1)),
        st.builds(thought, st.text(min_size=1)),
        st.builds(called, st.sampled_from("abc")),
        st.builds(returned, st.sampled_from("abc")),
    )
).map(with_results_of_calls)


@given(items)
def test_no_item_is_lost(items: list[Any]) -> None:
    messages = chat_messages(items, None)
    assert sum("reasoning" in message for message in messages) == sum(item["type"] == "reasoning" for item in items)
    assert sum(len(message.get("tool_calls", ())) for message in messages) == sum(
        item["type"] == "function_call" for item in items
    )
    told = [message["content"] for message in messages if message["content"] is not None]
    wanted = [
        item["output"] if item["type"] == "function_call_output" else item["content"][0]["text"]
        for item in items
        if item["type"] in ("message", "function_call_output")
    ]
    assert told == wanted


def test_fields_get_the_names_that_they_have_in_a_chat() -> None:
    made = body(max_output_tokens=5, temperature=0.5, reasoning={"effort": "low"}, top_logprobs=2, include=[LOGPROBS])
    assert made["max_completion_tokens"] == 5
    assert (made["temperature"], made["reasoning_effort"]) == (0.5, "low")
    assert (made["logprobs"], made["top_logprobs"]) == (True, 2)
    assert made["stream"] and made["stream_options"] == {"include_usage": True}


def test_functions_and_formats_are_nested_as_in_a_chat() -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": None}
    made = body(tools=[tool], tool_choice={"type": "function", "name": "look"})
    assert made["tools"] == [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    assert made["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    schema = {"type": "json_schema", "name": "city", "schema": {"type": "object"}}
    made = body(text={"format": schema})
    assert made["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": {"type": "object"}},
    }


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ],
)
def test_what_a_chat_has_not_is_refused(request_: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        body(**request_)
    assert caught.value.param == param


@pytest.mark.parametrize("tools", [{}, {"tools": []}, {"tools": [{"type": "namespace", "name": "n", "tools": []}]}])
def test_model_that_must_call_a_tool_and_has_none_is_refused(tools: dict[str, Any]) -> None:
    assert "tools" not in body(**tools)
    for choice in ("required", {"type": "function", "name": "look"}):
        with pytest.raises(InvalidRequest) as caught:
            body(**tools, tool_choice=choice)
        assert caught.value.param == "tool_choice"


def test_items_and_their_parts_are_counted() -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1"}
    parts = [{"type": "input_text", "text": "x"}] * 3
    message: dict[str, Any] = {"type": "message", "role": "user", "content": parts}
    reasoning = {"type": "reasoning", "summary": parts}
    items: list[dict[str, Any]] = [message, reasoning, call, output | {"output": "a text"}, output | {"output": parts}]
    assert num_parts(items) == 5 + 9
