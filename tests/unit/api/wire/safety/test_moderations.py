"""The body of POST /v1/moderations, and its answer."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import ModerationCreateResponse

from api.wire.safety.moderation_results import FURTHER, MAX_MODEL, result_of
from api.wire.safety.moderations import (
    MAX_CHARACTERS,
    MAX_INPUTS,
    ModerationRequest,
    moderation_request_of,
    moderations,
)
from cluster.errors import InvalidRequest
from tests.conformance.document import document
from tests.unit.json_values import JSON_VALUES

TEXT = {"type": "text", "text": "I want to go"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/image.jpg"}}


def refusal(**body: Any) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as refused:
        moderation_request_of(body)
    return refused.value.param, refused.value.code


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("one", ["one"]),
        ("", [""]),
        (["one", "two"], ["one", "two"]),
        ([TEXT], ["I want to go"]),
        ([TEXT, TEXT], ["I want to go\nI want to go"]),
    ],
    ids=["a text", "an empty text", "texts", "a part", "the parts of one input"],
)
def test_each_input_is_a_text(value: Any, texts: list[str]) -> None:
    assert moderation_request_of({"input": value}) == ModerationRequest(texts, None, frozenset())


def test_model_and_categories_of_ours_can_be_asked_for() -> None:
    body = {"input": "x", "model": "omni-moderation-latest", "include": ["personal-data", "personal-data"]}
    asked = ModerationRequest(["x"], "omni-moderation-latest", frozenset({"personal-data"}))
    assert moderation_request_of(body) == asked


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": 1}, "input", "invalid_type"),
        ({"input": TEXT}, "input", "invalid_type"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ["x", 1]}, "input[1]", "invalid_type"),
        ({"input": [1, 2]}, "input[0]", "invalid_type"),
        ({"input": ["x", TEXT]}, "input[1]", "invalid_type"),
        ({"input": [TEXT, "x"]}, "input[1]", "invalid_type"),
        ({"input": [TEXT, IMAGE]}, "input[1].type", "unsupported_value"),
        ({"input": [{"text": "x"}]}, "input[0].type", "invalid_value"),
        ({"input": [{"type": ["text"], "text": "x"}]}, "input[0].type", "invalid_value"),
        ({"input": [{"type": "text"}]}, "input[0].text", "missing_required_parameter"),
        ({"input": [TEXT | {"text": 1}]}, "input[0].text", "invalid_type"),
        ({"input": [TEXT | {"url": "x"}]}, "input[0].url", "unknown_parameter"),
        ({"input": "x", "model": 1}, "model", "invalid_type"),
        ({"input": "x", "model": "m" * (MAX_MODEL + 1)}, "model", "string_above_max_length"),
        ({"input": "x", "include": "personal-data"}, "include", "invalid_type"),
        ({"input": "x", "include": ["hate"]}, "include[0]", "invalid_value"),
        ({"input": "x", "include": [["personal-data"]]}, "include[0]", "invalid_value"),
    ],
)
def test_wrong_field_is_refused_by_its_path(body: dict[str, Any], param: str, code: str) -> None:
    assert refusal(**body) == (param, code)


def test_inputs_are_bounded_in_number() -> None:
    assert len(moderation_request_of({"input": ["x"] * MAX_INPUTS}).texts) == MAX_INPUTS
    assert refusal(input=["x"] * (MAX_INPUTS + 1)) == ("input", "array_above_max_length")


@pytest.mark.parametrize("rest", ["", "x"])
def test_inputs_are_bounded_in_characters(rest: str) -> None:
    half = "x" * (MAX_CHARACTERS // 2)
    for body in ([half, half + rest], [TEXT | {"text": half}, TEXT | {"text": half + rest}]):
        if rest:
            assert refusal(input=body) == ("input", "string_above_max_length")
        else:
            assert moderation_request_of({"input": body}).texts


parts = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"])}, optional={"text": JSON_VALUES})
bodies = st.fixed_dictionaries(
    {"input": JSON_VALUES | st.lists(parts | st.text() | JSON_VALUES)},
    optional={"model": JSON_VALUES, "include": JSON_VALUES | st.lists(st.sampled_from(FURTHER))},
)


@given(bodies)
def test_any_body_is_a_request_or_refused_by_a_path(body: dict[str, Any]) -> None:
    try:
        request = moderation_request_of(body)
    except InvalidRequest as error:
        assert error.param is not None and error.code is not None
    else:
        assert request.texts and all(isinstance(text, str) for text in request.texts)


def test_official_client_reads_the_answer() -> None:
    results = [result_of({"hate": 0.9}, {"hate"}), result_of({}, set(), further={"prompt-injection"})]
    body = moderations("0d97", "baton-safety", results)
    assert list(document().deviations("CreateModerationResponse", body)) == []
    read = ModerationCreateResponse.model_validate_json(msgspec.json.encode(body), strict=True)
    assert (read.id, read.model) == ("modr-0d97", "baton-safety")
    assert [(result.flagged, result.categories.hate) for result in read.results] == [(True, True), (False, False)]
