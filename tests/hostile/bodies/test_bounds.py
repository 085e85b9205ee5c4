"""Each bound of a request body holds, and ordinary requests pass all bounds."""

from typing import Any

import pytest

from api.wire.limits.bounds import (
    LISTS,
    MAX_COMPARED,
    MAX_PARTS,
    MAX_PATTERN,
    OBJECTS,
    TEXTS,
    check_bounds,
    check_sequences,
    num_sequences,
)
from cluster.errors import InvalidRequest

TEXT = {"type": "text", "text": "x"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ENTRIES: dict[type | None, Any] = {int: 1, str: "x", dict: {}, None: {}}


def refused(body: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        check_bounds(body)
    return error.value


@pytest.mark.parametrize("name", LISTS)
def test_list_may_have_so_many_entries(name: str) -> None:
    bound = LISTS[name]
    check_bounds({name: [ENTRIES[bound.of]] * bound.most})
    error = refused({name: [ENTRIES[bound.of]] * (bound.most + 1)})
    assert (error.param, error.code) == (name, "array_above_max_length")
    assert str(bound.most) in str(error)


@pytest.mark.parametrize("name", [name for name, bound in LISTS.items() if bound.of is not None])
def test_entry_of_another_type_is_refused_once(name: Any) -> None:
    assert refused({name: [None] * 3}).code == "invalid_type"


@pytest.mark.parametrize("name", OBJECTS)
def test_object_may_have_so_many_members(name: str) -> None:
    check_bounds({name: {str(n): 1 for n in range(OBJECTS[name])}})
    assert refused({name: {str(n): 1 for n in range(OBJECTS[name] + 1)}}).param == name


@pytest.mark.parametrize("name", TEXTS)
def test_text_may_have_so_many_characters(name: str) -> None:
    check_bounds({name: "x" * TEXTS[name]})
    assert refused({name: "x" * (TEXTS[name] + 1)}).code == "string_above_max_length"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [TEXT] * (MAX_PARTS // 2 + 1)}] * 2},
        {"messages": [{"role": "assistant", "tool_calls": [CALL] * (MAX_PARTS // 2 + 1)}] * 2},
        {"messages": [{"role": "developer", "content": "x", "tools": [{}] * 129}]},
        {"messages": [dict.fromkeys(map(str, range(65)))]},
        {"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": "[" * 100}}]}]},
        {"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": "[" + "[]," * 70_000 + "1]"}}]}]},
        {"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": "[" + "1," * 140_000 + "1]"}}]}]},
        {"tools": [{"type": "function", "name": "f" * 1000, "function": {"name": "f"}}]},
        {"tools": [{"type": "function", "name": "f", "function": {"name": "f" * 1000}}]},
        {"tools": [{"type": "function", "function": {"name": "f" * 65}}]},
        {"tools": [{"type": "function", "name": "f" * 65}]},
        {"tools": [{"type": "namespace", "name": "n" * 65, "tools": []}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f" * 65}]}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [{}] * 100}, *[{}] * 28]},
        {"tools": [{"type": "namespace", "tools": [{"type": "namespace", "tools": [{}] * 10_000}] * 128}]},
        {"stop": ["x" * 1025]},
        {"stop": "x" * 1025},
        {"prompt": [1, "x"]},
        {"prompt": [[1], ["x"]]},
        {"prompt": [True]},
        {"prompt": [-1]},
        {"prompt": [[-1]]},
        {"documents": [dict.fromkeys(map(str, range(33)))]},
        {"repetition_detection": {"max_pattern_size": MAX_PATTERN + 1, "min_count": 2}},
        {"repetition_detection": {"max_pattern_size": 10**9, "min_count": 2}},
        {"repetition_detection": {"max_pattern_size": MAX_PATTERN, "min_count": MAX_COMPARED}},
    ],
)
def test_what_is_bounded_together_or_within_is_refused(body: dict[str, Any]) -> None:
    refused(body)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"messages": 1, "tools": 1, "prompt": 1, "stop": 1, "documents": 1, "logit_bias": [], "model": []},
        {"messages": [1, None, {"content": 1, "tool_calls": [1, {"function": 1}]}], "tools": [1, {"function": 1}]},
        {"prompt": ["a", "b"]},
        {"prompt": [[1, 2], [3]]},
        {"prompt": []},
        {"stop": "x"},
        {"repetition_detection": {"max_pattern_size": 20, "min_count": 4}},
    ],
)
def test_what_is_of_another_type_is_left_to_who_knows_it(body: list[Any] | dict[str, Any] | None) -> None:
    check_bounds(body)
    assert num_sequences(body) >= 1


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"prompt": "a", "n": 2}, 2),
        ({"prompt": ["a", "b"], "n": 2}, 4),
        ({"prompt": [1, 2, 3], "n": 2}, 2),
        ({"prompt": [[1], [2], [3]], "n": 2}, 6),
        ({"n": -5}, 1),
    ],
)
def test_sequences_are_n_of_each_prompt(body: dict[str, Any], number: int) -> None:
    assert check_sequences(body, 6) == number


@pytest.mark.parametrize("n", ["16384", 16384.0, "2", True, [2], {}])
def test_number_that_is_no_integer_is_refused_before_others_read_it_as_one(n: object) -> None:
    with pytest.raises(InvalidRequest) as error:
        check_sequences({"n": n, "prompt": ["a"] * 3}, 6)
    assert (error.value.param, error.value.code) == ("n", "invalid_type")
    for name in ("max_pattern_size", "min_count"):
        wanted = {"max_pattern_size": 2, "min_count": 2} | {name: n}
        with pytest.raises(InvalidRequest) as error:
            check_bounds({"repetition_detection": wanted})
        assert error.value.param == "repetition_detection"


@pytest.mark.parametrize(("body", "param"), [({"n": 7}, "n"), ({"prompt": ["a"] * 7}, "prompt")])
def test_too_many_sequences_are_refused_with_the_number_that_may_be(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match="the limit is 6") as error:
        check_sequences(body, 6)
    assert error.value.param == param
