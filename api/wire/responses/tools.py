"""The tools of a Responses request as functions of a chat completion. A model is given functions only.

A `namespace` groups functions, which its client runs as it runs others. The model is given each of them by the name
`namespace.function`, and a call of it is shown to the client with its namespace. OpenAI's names have no dots, and a
function whose name is that of one in a namespace is refused.

OpenAI has tools of further types. Baton leaves out those that clients offer whether or not an answer needs them, and
refuses the others.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cluster.errors import InvalidRequest

Tool = dict[str, Any]

BY_OPENAI = frozenset(
    {
        "image_generation",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Types of the tools that OpenAI runs and its own clients offer with each request. They are left out. Without a search
for tools, the model has all functions from the beginning. Other tools that OpenAI runs are refused: who offers a
container, files or a server has made them ready for the answer.
"""
BY_CLIENTS = frozenset({"apply_patch", "custom", "local_shell", "shell"})
"""Types of the tools that clients run as they run functions, and that have no parameters. They are left out beside
functions, by which agents can do the same, and are refused where they are all that the model would have.
"""
_GIVEN = ("function", "namespace")
_SHOWN = ("description", "parameters", "strict")
"""Fields of a function, besides its name, that a chat completion has."""


class Offered(NamedTuple):
    tools: list[Tool]
    """Functions and namespaces, as the client has sent them."""
    left_out: tuple[str, ...]
    """Types of the tools that were left out, each once."""


def offered(tools: Sequence[Any], choice: Any) -> Offered:
    """What of `tools` the model is given. `choice` is the tool choice of the request.

    Raises:
        InvalidRequest: a tool is of a type that is refused, or lacks its name; or a tool that would be left out may not
            be, since the model must call one.
    """
    kinds = [tool.get("type") if isinstance(tool, dict) else None for tool in tools]
    may_miss: frozenset[str] = frozenset()
    if choice != "required":
        may_miss = BY_OPENAI | BY_CLIENTS if "function" in kinds or "namespace" in kinds else BY_OPENAI
    given, left_out = [], []
    for number, (kind, tool) in enumerate(zip(kinds, tools, strict=True)):
        if isinstance(kind, str) and kind in may_miss:
            left_out.append(kind)
        else:
            _check(tool, f"tools[{number}]", _GIVEN)
            given.append(tool)
    _check_names(given)
    return Offered(given, tuple(dict.fromkeys(left_out)))


def functions_of(tools: Sequence[Tool]) -> list[Tool]:
    """The tools as a chat completion has them. The description of a namespace precedes that of its first function."""
    return [{"type": "function", "function": function} for tool in tools for function in _functions(tool)]


def calls_by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    """How a call of a function in a namespace is shown, by the name by which the model calls it."""
    return {
        called_name(function["name"], tool["name"]): {"name": function["name"], "namespace": tool["name"]}
        for tool in tools
        if tool["type"] == "namespace"
        for function in tool["tools"]
    }


def called_name(name: str, namespace: str | None) -> str:
    """The name by which a model calls a function."""
    return f"{namespace}.{name}" if namespace else name


def _functions(tool: Tool) -> Iterator[Tool]:
    if tool["type"] == "function":
        yield _function(tool, None)
        return
    about = tool.get("description")
    for function in tool["tools"]:
        shown = _function(function, tool["name"])
        if about:
            shown["description"] = f"{about}\n\n{shown['description']}" if "description" in shown else about
        about = None
        yield shown


def _function(tool: Tool, namespace: str | None) -> Tool:
    named = {"name": called_name(tool["name"], namespace)}
    return named | {field: tool[field] for field in _SHOWN if tool.get(field) is not None}


def _check_names(tools: Sequence[Tool]) -> None:
    """A call of a function in a namespace must tell which function it is of."""
    taken = {tool["name"] for tool in tools if tool["type"] == "function"}
    for tool in tools:
        for function in tool["tools"] if tool["type"] == "namespace" else ():
            name = called_name(function["name"], tool["name"])
            if name in taken:
                raise InvalidRequest(f"two functions have the name {name!r}", "tools", "invalid_value")
            taken.add(name)


def _check(tool: Any, param: str, kinds: Sequence[str]) -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in kinds:
        raise InvalidRequest(
            f"only tools of type {' or '.join(map(repr, kinds))} are supported here",
            f"{param}.type",
            "unsupported_value",
        )
    if not isinstance(tool.get("name"), str):
        raise InvalidRequest(f"a {kind} needs a name", f"{param}.name", "missing_required_parameter")
    if not isinstance(tool.get("description"), str | None):
        raise InvalidRequest("a description must be a string", f"{param}.description", "invalid_type")
    if kind == "namespace":
        if not isinstance(tool.get("tools"), list):
            raise InvalidRequest("a namespace needs a list of tools", f"{param}.tools", "missing_required_parameter")
        for number, inner in enumerate(tool["tools"]):
            _check(inner, f"{param}.tools[{number}]", ("function",))
