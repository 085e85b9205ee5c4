"""The constraints of structured output are bounded before any other code reads them, on every surface alike."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.constraints import check_constraints
from cluster.config.structured_output import StructuredOutputConfig
from cluster.errors import InvalidRequest
from tests.component.answering import Model
from tests.component.app_with_fakes import FakeFrontend, a_client, an_app
from tests.component.socket_service import answer, socket_service
from tests.hostile.grammars.inputs import ENDLESS_RULES, HONEST, RECURSIVE_SUM, TOO_LARGE, TWELVE_FOLD, Schema, nested

DEFAULT = StructuredOutputConfig()
OPEN = StructuredOutputConfig(allow_grammars=True)
QUESTION: dict[str, Any] = {"model": "baton-demo", "messages": [{"role": "user", "content": "?"}]}
TEXT: dict[str, Any] = {"model": "baton-demo", "prompt": "?"}
INPUT: dict[str, Any] = {"model": "baton-demo", "input": "?", "store": False}
TAG = {"type": "structural_tag", "format": {"type": "regex", "pattern": "((a+)+)+b"}}


def of_chat(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def of_responses(schema: Any) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}


def of_tool(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]}


def of_flat_tool(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "name": "f", "parameters": schema}]}


def of_decoy_tool(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "name": "f", "parameters": schema, "function": {}}]}


def of_tool_in_namespace(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "namespace", "name": "n", **of_decoy_tool(schema)}]}


async def refused(path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with a_client(an_app(FakeFrontend())) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("schema", TOO_LARGE.values(), ids=TOO_LARGE)
@pytest.mark.parametrize("part", [of_chat, of_responses, of_tool, of_flat_tool, of_decoy_tool, of_tool_in_namespace])
def test_schema_that_is_too_large_is_refused_wherever_it_stands(
    part: Callable[[Any], dict[str, Any]], schema: Schema
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_constraints(part(schema), DEFAULT)
    assert refusal.value.code == "invalid_value"
    assert (refusal.value.param or "").split(".")[0] in ("response_format", "text", "tools")


@pytest.mark.parametrize("schema", TOO_LARGE.values(), ids=TOO_LARGE)
async def test_chat_completion_says_which_field_is_too_large(schema: Schema) -> None:
    error = await refused("/v1/chat/completions", QUESTION | of_chat(schema))
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith("response_format")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", TEXT | of_chat(TOO_LARGE["large multiple"]), "response_format.json_schema.schema"),
        (
            "/v1/completions",
            TEXT | {"structured_outputs": {"json": TOO_LARGE["large multiple"]}},
            "structured_outputs.json",
        ),
        ("/v1/responses", INPUT | of_responses(TOO_LARGE["large multiple"]), "text.format.schema"),
        ("/v1/responses", INPUT | of_flat_tool(TOO_LARGE["large multiple"]), "tools.0.parameters"),
        (
            "/v1/responses/input_tokens",
            {"input": "?"} | of_decoy_tool(TOO_LARGE["large multiple"]),
            "tools.0.parameters",
        ),
        ("/tokenize", QUESTION | of_tool(TOO_LARGE["large multiple"]), "tools.0.function.parameters"),
        ("/v1/chat/completions", QUESTION | of_tool(TOO_LARGE["large multiple"]), "tools.0.function.parameters"),
    ],
)
async def test_bounds_are_the_same_on_each_surface(path: str, body: dict[str, Any], param: str) -> None:
    assert (await refused(path, body))["param"] == param


@pytest.mark.parametrize(
    "part",
    [of_responses(TOO_LARGE["many branches"]), of_flat_tool(TOO_LARGE["large multiple"]), {"text": {"format": TAG}}],
    ids=["schema", "tool", "tag"],
)
async def test_message_on_a_websocket_is_refused_as_a_request_is(part: dict[str, Any]) -> None:
    model = Model()
    async with socket_service(model) as service:
        connection = await service.connection()
        refusal = await answer(connection, **INPUT | part)
        assert (refusal["type"], refusal["status"]) == ("error", 400)
        assert refusal["error"] == await refused("/v1/responses", INPUT | part)
        assert not model.bodies
        assert (await answer(connection, **INPUT))["type"] == "response.completed"


@pytest.mark.parametrize("grammar", [RECURSIVE_SUM, TWELVE_FOLD, ENDLESS_RULES])
@pytest.mark.parametrize("question", [("/v1/chat/completions", QUESTION), ("/v1/completions", TEXT)])
async def test_grammars_of_clients_are_refused_unless_the_operator_allows_them(
    question: tuple[str, dict[str, Any]], grammar: str
) -> None:
    path, body = question
    error = await refused(path, body | {"structured_outputs": {"grammar": grammar}})
    assert (error["param"], error["code"]) == ("structured_outputs.grammar", "unsupported_parameter")
    check_constraints(body | {"structured_outputs": {"grammar": grammar}}, OPEN)


@pytest.mark.parametrize(
    "part", [{"response_format": TAG}, {"structured_outputs": {"structural_tag": "{}"}}, {"text": {"format": TAG}}]
)
def test_structural_tags_of_clients_are_refused_unless_the_operator_allows_them(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_constraints(part, DEFAULT)
    assert refusal.value.code == "unsupported_parameter"
    check_constraints(part, OPEN)


@pytest.mark.parametrize(
    "outputs",
    [
        {"regex": "a{1,100000}"},
        {"regex": "a" * 5000},
        {"choice": ["a"] * 1001},
        {"choice": ["x" * 300_000]},
        {"choice": []},
        {"json": "["},
        {"json": "[" * 100_000},
        {"json": '{"enum": ["' + "x" * 300_000 + '"]}'},
    ],
    ids=lambda outputs: str(outputs)[:30],
)
def test_other_constraints_have_bounds_too(outputs: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        check_constraints({"structured_outputs": outputs}, OPEN)


@pytest.mark.parametrize("schema", HONEST.values(), ids=HONEST)
@pytest.mark.parametrize("part", [of_chat, of_responses, of_tool, of_flat_tool])
def test_honest_schema_is_let_through(part: Callable[[Any], dict[str, Any]], schema: Schema) -> None:
    check_constraints(part(schema), DEFAULT)


@pytest.mark.parametrize("part", [of_chat, of_responses, of_tool, of_flat_tool])
def test_schema_may_have_sixty_four_levels_and_no_more(part: Callable[[Any], dict[str, Any]]) -> None:
    check_constraints(part(nested(63)), DEFAULT)
    for too_deep in (nested(64), {"type": "array", "items": [[[nested(61)]]]}):
        with pytest.raises(InvalidRequest, match="64 levels"):
            check_constraints(part(too_deep), DEFAULT)


@pytest.mark.parametrize("tools", [of_tool({"type": "object"}), of_flat_tool({"type": "object"})])
@pytest.mark.parametrize(
    ("outputs", "is_refused"),
    [
        ({"regex": "a+"}, True),
        ({"grammar": RECURSIVE_SUM}, True),
        ({"structural_tag": "{}"}, True),
        ({"choice": ["yes", "no"]}, False),
        ({"json": {"type": "integer"}}, False),
    ],
    ids=str,
)
def test_constraint_that_xgrammar_would_follow_without_bounds_is_refused_beside_tools(
    tools: dict[str, Any], outputs: dict[str, Any], is_refused: bool
) -> None:
    body = {"structured_outputs": outputs}
    check_constraints(body, OPEN)
    check_constraints(body | tools | {"tool_choice": "none"}, OPEN)
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}):
        if not is_refused:
            check_constraints(body | tools | choice, OPEN)
            continue
        with pytest.raises(InvalidRequest, match="cannot be combined with tools") as refusal:
            check_constraints(body | tools | choice, OPEN)
        assert refusal.value.param == f"structured_outputs.{next(iter(outputs))}"


def test_properties_may_be_named_as_keywords_are() -> None:
    names = ("enum", "pattern", "$ref", "minItems", "multipleOf", "anyOf", "properties", "type")
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    check_constraints(of_chat(schema), DEFAULT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["properties", "enum", "$ref", "pattern", "minItems", "multipleOf", "anyOf", "x", "schema"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON, st.sampled_from(["response_format", "text", "tools", "structured_outputs"]))
def test_nothing_but_a_refusal_comes_of_any_body(value: Any, name: str) -> None:
    for body in ({name: value}, {name: {"format": value, "json_schema": value, "json": value}}, {name: [value]}, value):
        try:
            check_constraints(body, DEFAULT)
        except InvalidRequest as error:
            assert error.param


@pytest.mark.parametrize("begun", ["{1,", "{", "{1 ", "{1,2"])
def test_spaces_in_a_regular_expression_are_looked_at_once(begun: str) -> None:
    """The search runs on the event loop. With backtracking it takes 76 ms of CPU time, and without 0.1 ms."""
    began = time.thread_time()
    check_constraints({"structured_outputs": {"regex": begun + " " * 4090}}, DEFAULT)
    assert time.thread_time() - began < 0.02
