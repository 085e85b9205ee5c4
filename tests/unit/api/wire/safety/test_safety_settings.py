"""What a request asks of safety: names of OpenAI and of Gemini, thresholds, and what is refused."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.policy import Threshold
from api.wire.safety.moderation_results import CATEGORIES, FURTHER, MAX_MODEL
from api.wire.safety.safety_settings import (
    MAX_SETTINGS,
    ModerationAsked,
    SafetySettings,
    settings_in,
    without_settings,
)
from cluster.errors import InvalidRequest
from tests.unit.json_values import JSON_VALUES

LOW = "block_low_and_above"


def thresholds(*entries: Any) -> dict[str, str]:
    settings = settings_in({"safety_settings": list(entries)})
    assert settings is not None and settings.moderation is None
    return settings.thresholds


def moderation(value: Any) -> ModerationAsked | None:
    settings = settings_in({"moderation": value})
    assert settings is not None and settings.thresholds == {}
    return settings.moderation


def refusal(body: Any) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as refused:
        settings_in(body)
    return refused.value.param, refused.value.code


@pytest.mark.parametrize("body", [{}, {"model": "m"}, {"safety_settings": None, "moderation": None}, [], "x", None])
def test_request_may_have_no_settings(body: Any) -> None:
    assert settings_in(body) is None


@pytest.mark.parametrize("category", [*CATEGORIES, *FURTHER])
def test_openai_s_name_is_one_category(category: str) -> None:
    assert thresholds({"category": category, "threshold": LOW}) == {category: LOW}
    assert thresholds({"category": category.upper(), "threshold": LOW}) == {category: LOW}


@pytest.mark.parametrize(
    ("name", "categories"),
    [
        ("HARM_CATEGORY_HARASSMENT", {"harassment", "harassment/threatening"}),
        ("HARM_CATEGORY_HATE_SPEECH", {"hate", "hate/threatening"}),
        ("hate_speech", {"hate", "hate/threatening"}),
        ("HARM_CATEGORY_SEXUALLY_EXPLICIT", {"sexual"}),
        (
            "harm_category_dangerous_content",
            {"illicit", "illicit/violent", "self-harm", "self-harm/intent", "self-harm/instructions"},
        ),
        ("HARM_CATEGORY_JAILBREAK", {"prompt-injection"}),
    ],
)
@pytest.mark.parametrize("field", ["category", "type"])
def test_gemini_s_name_is_all_categories_that_it_means(field: str, name: str, categories: set[str]) -> None:
    assert thresholds({field: name, "threshold": LOW}) == dict.fromkeys(categories, LOW)


@pytest.mark.parametrize(
    ("spelling", "threshold"),
    [
        ("off", "off"),
        ("OFF", "off"),
        ("BLOCK_NONE", "off"),
        ("block_none", "off"),
        ("BLOCK_ONLY_HIGH", "block_only_high"),
        ("Block_Medium_And_Above", "block_medium_and_above"),
        ("BLOCK_LOW_AND_ABOVE", "block_low_and_above"),
        ("block_low_and_above", "block_low_and_above"),
    ],
)
def test_threshold_may_be_spelled_as_clients_know_it(spelling: str, threshold: str) -> None:
    assert thresholds({"category": "hate", "threshold": spelling}) == {"hate": threshold}


def test_unspecified_threshold_leaves_the_category_as_it_is() -> None:
    unspecified = {"category": "hate", "threshold": "HARM_BLOCK_THRESHOLD_UNSPECIFIED"}
    assert thresholds(unspecified) == {}
    assert thresholds(unspecified, {"category": "sexual", "threshold": LOW}) == {"sexual": LOW}


def test_thresholds_are_those_that_policies_have() -> None:
    for threshold in Threshold:
        assert thresholds({"category": "hate", "threshold": threshold.value}) == {"hate": threshold}


def test_each_category_may_have_a_threshold() -> None:
    every = [{"category": category, "threshold": LOW} for category in (*CATEGORIES, *FURTHER)]
    assert len(every) == MAX_SETTINGS
    assert thresholds(*every) == dict.fromkeys((*CATEGORIES, *FURTHER), LOW)
    assert refusal({"safety_settings": [*every, every[0]]}) == ("safety_settings", "array_above_max_length")


@pytest.mark.parametrize(
    ("value", "path", "code"),
    [
        ("off", "", "invalid_type"),
        ({"category": "hate", "threshold": "off"}, "", "invalid_type"),
        ([], "", "empty_array"),
        (["off"], "[0]", "invalid_type"),
        ([{"threshold": "off"}], "[0].category", "missing_required_parameter"),
        ([{"category": None, "type": None, "threshold": "off"}], "[0].category", "missing_required_parameter"),
        ([{"category": "hate", "type": "hate", "threshold": "off"}], "[0].category", "invalid_value"),
        ([{"category": ["hate"], "threshold": "off"}], "[0].category", "invalid_type"),
        ([{"type": 1, "threshold": "off"}], "[0].type", "invalid_type"),
        ([{"category": "love", "threshold": "off"}], "[0].category", "invalid_value"),
        ([{"category": "HARM_CATEGORY_CIVIC_INTEGRITY", "threshold": "off"}], "[0].category", "invalid_value"),
        ([{"category": "HARM_CATEGORY_UNSPECIFIED", "threshold": "off"}], "[0].category", "invalid_value"),
        ([{"category": "hate"}], "[0].threshold", "missing_required_parameter"),
        ([{"category": "hate", "threshold": 1}], "[0].threshold", "invalid_type"),
        ([{"category": "hate", "threshold": "high"}], "[0].threshold", "invalid_value"),
        ([{"category": "hate", "threshold": "off", "method": "SEVERITY"}], "[0].method", "unknown_parameter"),
        ([{"category": "hate", "threshold": "off"}] * 2, "[1].category", "invalid_value"),
        (
            [{"category": "hate", "threshold": "off"}, {"type": "HARM_CATEGORY_HATE_SPEECH", "threshold": LOW}],
            "[1].type",
            "invalid_value",
        ),
        (
            [{"category": "hate", "threshold": "HARM_BLOCK_THRESHOLD_UNSPECIFIED"}] * 2,
            "[1].category",
            "invalid_value",
        ),
    ],
)
def test_wrong_setting_is_refused_by_its_path(value: Any, path: str, code: str) -> None:
    assert refusal({"safety_settings": value}) == (f"safety_settings{path}", code)


def test_refusal_of_a_category_says_which_there_are() -> None:
    with pytest.raises(InvalidRequest, match="HARM_CATEGORY_HATE_SPEECH") as refused:
        thresholds({"category": "love", "threshold": LOW})
    assert "self-harm/intent" in str(refused.value)


@pytest.mark.parametrize(
    ("value", "blocks_input", "blocks_output"),
    [
        ({"model": "m"}, False, False),
        ({"model": "m", "policy": None}, False, False),
        ({"model": "m", "policy": {}}, False, False),
        ({"model": "m", "policy": {"input": None, "output": {"mode": "score"}}}, False, False),
        ({"model": "m", "policy": {"input": {"mode": "block"}}}, True, False),
        ({"model": "m", "policy": {"input": {"mode": "score"}, "output": {"mode": "block"}}}, False, True),
    ],
)
def test_moderation_scores_unless_it_is_asked_to_block(
    value: dict[str, Any], blocks_input: bool, blocks_output: bool
) -> None:
    assert moderation(value) == ModerationAsked("m", blocks_input, blocks_output)


@pytest.mark.parametrize(
    ("value", "path", "code"),
    [
        ("omni-moderation-latest", "", "invalid_type"),
        ([], "", "invalid_type"),
        ({}, ".model", "missing_required_parameter"),
        ({"model": 1}, ".model", "invalid_type"),
        ({"model": "m" * (MAX_MODEL + 1)}, ".model", "string_above_max_length"),
        ({"model": "m", "mode": "block"}, ".mode", "unknown_parameter"),
        ({"model": "m", "policy": "block"}, ".policy", "invalid_type"),
        ({"model": "m", "policy": {"tools": {}}}, ".policy.tools", "unknown_parameter"),
        ({"model": "m", "policy": {"input": "block"}}, ".policy.input", "invalid_type"),
        ({"model": "m", "policy": {"input": {}}}, ".policy.input.mode", "missing_required_parameter"),
        ({"model": "m", "policy": {"output": {"mode": "warn"}}}, ".policy.output.mode", "invalid_value"),
        ({"model": "m", "policy": {"output": {"mode": ["block"]}}}, ".policy.output.mode", "invalid_value"),
        ({"model": "m", "policy": {"output": {"mode": "block", "x": 1}}}, ".policy.output.x", "unknown_parameter"),
    ],
)
def test_wrong_moderation_is_refused_by_its_path(value: Any, path: str, code: str) -> None:
    assert refusal({"moderation": value}) == (f"moderation{path}", code)


def test_both_may_be_asked_for() -> None:
    body = {"safety_settings": [{"category": "hate", "threshold": LOW}], "moderation": {"model": "m"}}
    assert settings_in(body) == SafetySettings({"hate": LOW}, ModerationAsked("m", False, False))


def test_rest_of_the_body_is_for_vllm() -> None:
    body: dict[str, Any] = {"model": "m", "safety_settings": [], "moderation": None, "messages": []}
    before = deepcopy(body)
    assert without_settings(body) == {"model": "m", "messages": []}
    assert body == before


@pytest.mark.parametrize("body", [None, "x", [{"moderation": 1}]], ids=repr)
def test_body_that_is_no_object_is_left_to_its_route(body: Any) -> None:
    assert without_settings(body) == body


names = st.sampled_from([*CATEGORIES, "HARM_CATEGORY_HARASSMENT", "hate_speech"]) | JSON_VALUES
levels = st.sampled_from(["off", "BLOCK_ONLY_HIGH", "HARM_BLOCK_THRESHOLD_UNSPECIFIED"]) | JSON_VALUES
entries = st.fixed_dictionaries({"threshold": levels}, optional={"category": names, "type": names, "x": JSON_VALUES})
modes = st.fixed_dictionaries({"mode": st.sampled_from(["score", "block"]) | JSON_VALUES}) | JSON_VALUES
policies = st.fixed_dictionaries({}, optional={"input": modes, "output": modes}) | JSON_VALUES
moderations = st.fixed_dictionaries({"model": st.text() | JSON_VALUES}, optional={"policy": policies})
bodies = st.fixed_dictionaries(
    {},
    optional={
        "safety_settings": st.lists(entries, max_size=3) | JSON_VALUES,
        "moderation": moderations | JSON_VALUES,
    },
)


@given(bodies | JSON_VALUES)
def test_any_body_has_settings_or_none_or_is_refused_by_a_path(body: Any) -> None:
    try:
        settings = settings_in(body)
    except InvalidRequest as error:
        assert error.param is not None and error.param.startswith(("safety_settings", "moderation"))
        assert error.code is not None
    else:
        if settings is not None:
            assert settings.thresholds.keys() <= {*CATEGORIES, *FURTHER}
            assert set(settings.thresholds.values()) <= set(Threshold)
    without_settings(body)
