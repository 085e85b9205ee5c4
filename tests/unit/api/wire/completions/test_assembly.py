"""The chunks of a chat completion are put together to the chat completion that was streamed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.completions.assembly import Assembly
from tests.unit.chat_chunks import Chunk, answer, call, chunk, usage


def assembled(*chunks: Chunk) -> Assembly:
    assembly = Assembly()
    for one in chunks:
        assembly.take(one)
    return assembly


def choice(*chunks: Chunk) -> dict[str, Any]:
    (only,) = assembled(*chunks).completion()["choices"]
    return only


def test_text_is_put_together() -> None:
    completion = assembled(*answer("Hello ", "there")).completion()
    assert completion == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "usage": usage()["usage"],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello there", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
    }


@given(st.lists(st.tuples(st.integers(0, 3), st.text())))
def test_choices_are_told_apart_however_they_come(pieces: list[tuple[int, str]]) -> None:
    assembly = assembled(*answer("", finish_reason="length"))
    for index, text in pieces:
        for part in (chunk(content=text), chunk("stop")):
            part["choices"][0]["index"] = index + 1
            assembly.take(part)
    told = {index: "".join(text for other, text in pieces if other == index) for index, _ in pieces}
    choices = {one["index"] - 1: one["message"]["content"] for one in assembly.completion()["choices"][1:]}
    assert choices == told and list(choices) == sorted(choices)


def test_answer_without_a_text_has_none() -> None:
    assert choice(*answer())["message"]["content"] == ""


def test_reasoning_is_kept_beside_the_text() -> None:
    message = choice(chunk(reasoning="Well"), chunk(reasoning=", then"), chunk(content="Yes"), chunk("stop"))["message"]
    assert (message["reasoning"], message["content"]) == ("Well, then", "Yes")


def test_reasoning_alone_has_no_text() -> None:
    assert choice(chunk(reasoning="Well"), chunk("length"))["message"]["content"] is None


def test_tool_calls_are_put_together() -> None:
    pieces = [call(0, id="a", name="look"), call(0, '{"at":'), call(0, "1}"), call(1, "{}", id="b", name="go")]
    made = choice(*pieces, chunk("tool_calls"))
    assert made["finish_reason"] == "tool_calls" and made["message"]["content"] is None
    assert made["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}},
        {"id": "b", "type": "function", "function": {"name": "go", "arguments": "{}"}},
    ]


def test_logprobs_are_in_order() -> None:
    first, second = ({"content": [{"token": token, "logprob": -1.0}]} for token in "ab")
    made = choice(chunk(content="a", logprobs=first), chunk("stop", content="b", logprobs=second))
    assert [entry["token"] for entry in made["logprobs"]["content"]] == ["a", "b"]


def test_it_is_whole_when_every_choice_has_ended() -> None:
    other = chunk(content="x")
    other["choices"][0]["index"] = 1
    assembly = assembled(chunk(role="assistant"), other)
    assert not assembly.is_whole
    assembly.take(chunk("stop"))
    assert not assembly.is_whole
    assembly.take({**other, "choices": [{**other["choices"][0], "finish_reason": "length"}]})
    assert assembly.is_whole


@pytest.mark.parametrize("chunks", [[], [{"error": {"message": "no"}}], [usage()]])
def test_nothing_is_not_whole(chunks: list[Any]) -> None:
    assert not assembled(*chunks).is_whole
