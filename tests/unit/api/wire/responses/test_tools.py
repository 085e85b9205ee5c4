"""Which tools of a response the model is given, and the names of functions in namespaces."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.responses.tools import BY_CLIENTS, BY_OPENAI, called_name, calls_by_name, functions_of, offered
from cluster.errors import InvalidRequest

LOOK = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}, "strict": None}
NAMESPACE = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [LOOK, {"type": "function", "name": "list", "defer_loading": True}],
}


def test_tools_that_openai_runs_are_left_out_once_each() -> None:
    tools = [{"type": kind} for kind in sorted(BY_OPENAI)]
    assert offered([*tools, LOOK, *tools, NAMESPACE], "auto") == ([LOOK, NAMESPACE], tuple(sorted(BY_OPENAI)))
    assert offered(tools, {"type": "function", "name": "look"}).tools == []
    with pytest.raises(InvalidRequest):
        offered([LOOK, *tools], "required")


@pytest.mark.parametrize("kind", sorted(BY_CLIENTS))
def test_tools_of_clients_are_left_out_where_functions_are_left(kind: str) -> None:
    tools = [{"type": kind, "name": "patch"}, {"type": "web_search"}]
    assert offered([*tools, LOOK], "none") == ([LOOK], (kind, "web_search"))
    assert offered([*tools, NAMESPACE], "auto").tools == [NAMESPACE]
    for refused, choice in ((tools, "auto"), ([*tools, LOOK], "required")):
        with pytest.raises(InvalidRequest):
            offered(refused, choice)


def test_functions_of_a_namespace_have_its_name_and_its_description_once() -> None:
    assert [tool["function"] for tool in functions_of([LOOK, NAMESPACE])] == [
        {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
        {"name": "crm.look", "description": "Customers.\n\nLook.", "parameters": {"type": "object"}},
        {"name": "crm.list"},
    ]
    bare = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [{"name": "a"}, {"name": "b"}]}
    assert [tool["function"].get("description") for tool in functions_of([bare])] == ["Customers.", None]


def test_function_that_has_the_name_of_one_in_a_namespace_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"crm\.look"):
        offered([NAMESPACE, {"type": "function", "name": "crm.look"}], "auto")
    one = {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b.c"}]}
    other = {"type": "namespace", "name": "a.b", "tools": [{"type": "function", "name": "c"}]}
    with pytest.raises(InvalidRequest, match=r"a\.b\.c"):
        offered([one, other], "auto")


names = st.text("abc_-", min_size=1, max_size=3)


@given(st.lists(st.tuples(names, st.lists(names, max_size=3)), max_size=4))
def test_each_call_is_shown_by_the_namespace_in_which_its_function_is(namespaces: list[tuple[str, list[str]]]) -> None:
    tools = [
        {"type": "namespace", "name": name, "tools": [{"type": "function", "name": inner} for inner in inners]}
        for name, inners in namespaces
    ]
    shown = calls_by_name([LOOK, *tools])
    for function in (tool["function"] for tool in functions_of(tools)):
        call = shown[function["name"]]
        assert function["name"] == called_name(call["name"], call["namespace"])
        assert (call["namespace"], call["name"]) in {(name, inner) for name, inners in namespaces for inner in inners}
    assert "look" not in shown


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ("look", "tools[1].type"),
        ({"type": ["function"]}, "tools[1].type"),
        ({"type": "code_interpreter", "container": {"type": "auto"}}, "tools[1].type"),
        ({"type": "function"}, "tools[1].name"),
        ({"type": "function", "name": 7}, "tools[1].name"),
        ({"type": "namespace", "name": "crm", "tools": {}}, "tools[1].tools"),
        ({"type": "namespace", "name": "crm", "tools": [NAMESPACE]}, "tools[1].tools[0].type"),
        ({"type": "namespace", "name": "crm", "tools": [{"type": "function"}]}, "tools[1].tools[0].name"),
    ],
)
def test_other_tools_are_refused_by_their_place(tool: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        offered([LOOK, tool], "auto")
    assert caught.value.param == param
