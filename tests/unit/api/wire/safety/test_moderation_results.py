"""Results of moderation, as OpenAI's client reads them."""

from typing import Any

import msgspec
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.moderation import Categories, Moderation
from openai.types.responses import Response

from api.safety.verdict import Category
from api.wire.completions.assembly import Assembly
from api.wire.safety.moderation_results import (
    CATEGORIES,
    FURTHER,
    NotModerated,
    completion_moderation,
    moderation_chunk,
    response_moderation,
    result_of,
)
from tests.conformance.document import document
from tests.unit.api.wire.responses.test_events import RESPONSE
from tests.unit.chat_chunks import answer, chunk, usage

SCORES = {"harassment": 0.9, "violence": 0.25, "personal-data": 1.0}
RESULT = result_of(SCORES, {"harassment", "personal-data"})
TIMED_OUT = NotModerated("timeout", "the classifier has not answered in time")
SIDES: list[Any] = [RESULT, TIMED_OUT]


def validated(model: type[Any], body: dict[str, Any]) -> Any:
    """As the official client in strict mode does it."""
    return model.model_validate_json(msgspec.json.encode(body), strict=True)


def test_categories_are_openai_s_and_those_that_safety_has() -> None:
    assert {field.alias or name for name, field in Categories.model_fields.items()} == set(CATEGORIES)
    assert {*CATEGORIES, *FURTHER} == set(Category)


def test_result_has_all_categories_of_openai() -> None:
    read: Moderation = validated(Moderation, RESULT)
    assert read.flagged
    assert (read.categories.harassment, read.category_scores.harassment) == (True, 0.9)
    assert (read.categories.violence, read.category_scores.violence) == (False, 0.25)
    assert (read.categories.self_harm_intent, read.category_scores.self_harm_intent) == (False, 0.0)
    for shown in ("categories", "category_scores", "category_applied_input_types"):
        assert tuple(RESULT[shown]) == CATEGORIES


def test_category_that_was_not_looked_for_applies_to_no_input() -> None:
    applied = RESULT["category_applied_input_types"]
    assert {category for category, kinds in applied.items() if kinds == ["text"]} == {"harassment", "violence"}
    assert applied["hate"] == []


def test_our_own_categories_are_shown_to_those_who_ask() -> None:
    result = result_of(SCORES, {"personal-data"}, further={"personal-data"})
    assert result["flagged"] and result["categories"]["personal-data"]
    assert "prompt-injection" not in result["categories"]
    validated(Moderation, result)


def test_text_is_flagged_for_a_category_that_is_shown() -> None:
    assert not result_of(SCORES, {"personal-data"})["flagged"]
    assert not result_of({}, set())["flagged"]


@pytest.mark.parametrize("of_input", SIDES, ids=["result", "error"])
@pytest.mark.parametrize("of_output", SIDES, ids=["result", "error"])
def test_moderation_of_a_response_is_valid(of_input: Any, of_output: Any) -> None:
    sides = [side if side is TIMED_OUT else [side] for side in (of_input, of_output)]
    body = response_moderation(completion_moderation("baton-safety", *sides))
    assert list(document().deviations("Moderation", body)) == []
    read = validated(Response, RESPONSE | {"moderation": body}).moderation
    assert [read.input.type, read.output.type] == [
        "error" if side is TIMED_OUT else "moderation_result" for side in (of_input, of_output)
    ]


@pytest.mark.parametrize("of_input", SIDES, ids=["result", "error"])
@pytest.mark.parametrize("of_output", SIDES, ids=["result", "error"])
def test_moderation_of_a_chat_completion_is_valid(of_input: Any, of_output: Any) -> None:
    sides = [side if side is TIMED_OUT else [side] for side in (of_input, of_output)]
    body = completion_moderation("baton-safety", *sides)
    assert list(document().deviations("ChatCompletionModeration", body)) == []
    completion = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
    read = validated(ChatCompletion, completion | {"moderation": body}).moderation
    assert [read.input.type, read.output.type] == [
        "error" if side is TIMED_OUT else "moderation_results" for side in sides
    ]


def test_each_choice_has_a_result() -> None:
    body = completion_moderation("baton-safety", [RESULT], [RESULT, result_of({}, set())])
    assert [result["flagged"] for result in body["output"]["results"]] == [True, False]


def a_stream() -> list[dict[str, Any]]:
    """A chat completion that asks for its moderation and for its usage."""
    *chunks, last, its_usage = answer("Hello")
    moderation = completion_moderation("baton-safety", [RESULT], [RESULT])
    its_usage = chunk() | its_usage
    return [*chunks, last, moderation_chunk(last, moderation), its_usage]


def test_moderation_chunk_is_valid_and_has_no_choices() -> None:
    told = a_stream()[-2]
    assert list(document().deviations("CreateChatCompletionStreamResponse", told)) == []
    read: ChatCompletionChunk = validated(ChatCompletionChunk, told)
    assert (read.id, read.choices) == ("chatcmpl-1", [])
    assert read.moderation is not None


def test_client_that_reads_a_stream_to_its_end_has_moderation_and_usage() -> None:
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    for one in a_stream():
        state.handle_chunk(validated(ChatCompletionChunk, one))
    completion = state.get_final_completion()
    assert completion.choices[0].message.content == "Hello"
    assert completion.usage is not None and completion.usage.total_tokens == usage()["usage"]["total_tokens"]
    assert completion.moderation is not None and completion.moderation.input.type == "moderation_results"


def test_stored_stream_keeps_its_moderation() -> None:
    assembly = Assembly()
    for one in a_stream():
        assembly.take(one)
    assert assembly.is_whole
    assert assembly.completion()["moderation"] == a_stream()[-2]["moderation"]
