"""Which fields and blocks of a message are read, ignored and refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.limits.bounds import MAX_PARTS
from api.wire.messages.request import IGNORED, READ, UNSUPPORTED, for_charging, read_fields
from cluster.errors import InvalidRequest

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}


def of_result(content: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]}]
    }


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_field_without_effect_is_accepted_and_left_out(name: str) -> None:
    assert read_fields(ASKED | {name: {"any": "value"}}) == ASKED


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_field_that_would_change_the_answer_is_refused_unless_it_is_empty(name: str) -> None:
    nothing: tuple[Any, ...] = (None, [], {})
    for empty in nothing:
        assert read_fields(ASKED | {name: empty}) == ASKED
    with pytest.raises(InvalidRequest, match=name):
        read_fields(ASKED | {name: [{"type": "url"}]})


@pytest.mark.parametrize("name", ["kv_transfer_params", "cache_salt", "vllm_xargs", "chat_template_kwargs", "n", "foo"])
def test_other_fields_are_unknown(name: str) -> None:
    """Also those of vLLM's request model that reach into the engines."""
    with pytest.raises(InvalidRequest) as refused:
        read_fields(ASKED | {name: None})
    assert (refused.value.param, refused.value.code) == (name, "unknown_parameter")


@pytest.mark.parametrize("body", [None, [], "x", 5])
def test_body_must_be_an_object(body: Any) -> None:
    with pytest.raises(InvalidRequest, match="JSON object"):
        read_fields(body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"name": "a", "input_schema": {}}, {"type": "web_search_20250305"}]}, "tools.1.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tools": [{"type": {}, "name": "bash"}]}, "tools.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"system": [{"type": "text", "text": "a"}, {"type": "image"}]}, "system.1"),
        (of_result([{"type": "image", "source": {}}]), "messages.0.content.0.content.0"),
        (of_result([{"type": "document"}]), "messages.0.content.0.content.0.type"),
        (of_result([{"type": []}]), "messages.0.content.0.content.0.type"),
        (of_result(["text"]), "messages.0.content.0.content.0.type"),
        (of_result([{"type": "text", "text": 5}]), "messages.0.content.0.content.0.text"),
    ],
)
def test_what_the_model_would_not_see_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_fields(ASKED | fields)
    assert refused.value.param == param and param.removesuffix(".type") in str(refused.value)


def test_number_of_blocks_is_bounded_wherever_they_are() -> None:
    blocks = [{"type": "text", "text": ""}] * (MAX_PARTS // 2)
    fields = ASKED | {"system": blocks, **of_result([*blocks[1:]])}
    assert read_fields(fields) == fields
    with pytest.raises(InvalidRequest, match=f"more than {MAX_PARTS}"):
        read_fields(ASKED | {"system": blocks, **of_result(blocks)})


def test_end_user_and_service_tier_are_told() -> None:
    assert for_charging({"metadata": {"user_id": "u"}, "service_tier": "standard_only"}) == {
        "user": "u",
        "service_tier": "default",
    }
    assert for_charging({"metadata": {"user_id": None}, "service_tier": None}) == {}
    with pytest.raises(InvalidRequest, match="user_id"):
        for_charging({"metadata": {"user_id": 5}})


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4), st.sampled_from(["text", "tool_result"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "content", "text", "role"]), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(READ | UNSUPPORTED | IGNORED)), anything))
def test_any_values_are_read_or_refused(body: dict[str, Any]) -> None:
    try:
        read = read_fields(body) | for_charging(body)
    except InvalidRequest:
        return
    assert read.keys() <= READ | {"user"}
