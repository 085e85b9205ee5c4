"""The body of POST /v1/responses, and the response object before anything is generated. api/wire/responses/as_chat.py
makes the chat completion that generates the response.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from api.wire.items import Item, items_of
from api.wire.pages import metadata_of
from api.wire.responses.asked import Asked
from api.wire.responses.tools import offered
from api.wire.slo import tier_of
from cluster.errors import InvalidRequest
from cluster.messages.ids import SloClass

MAX_INPUT_ITEMS = 10_000
"""Items in the input of one request. Lower refuses clients that send whole conversations; higher takes longer to check.
"""
MIN_COMPACT_THRESHOLD = 1000
"""Smallest `compact_threshold`, in tokens, as OpenAI limits it."""

KNOWN = frozenset(
    {
        "background",
        "client_metadata",
        "context_management",
        "conversation",
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "model",
        "moderation",
        "parallel_tool_calls",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "safety_settings",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    }
)


INCLUDABLE = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "message.output_text.logprobs",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""OpenAI's values of `include`. Baton has only the log probabilities to include. It accepts all values, because clients
send them to every service.
"""

_TOOL_CHOICES = ("none", "auto", "required")

_SUMMARIES_OF_REASONING = ("summary", "generate_summary")
"""Fields that ask for a summary of the reasoning. They have no effect, because the response contains the reasoning
itself.
"""

TYPES: dict[str, Any] = {
    **dict.fromkeys(
        (
            "instructions",
            "model",
            "previous_response_id",
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "truncation",
            "user",
        ),
        str,
    ),
    **dict.fromkeys(("background", "store", "stream", "parallel_tool_calls"), bool),
    **dict.fromkeys(("max_output_tokens", "max_tool_calls", "top_logprobs"), int),
    **dict.fromkeys(("temperature", "top_p"), (int, float)),
    **dict.fromkeys(
        ("text", "reasoning", "stream_options", "metadata", "client_metadata", "prompt_cache_options"), dict
    ),
    **dict.fromkeys(("tools", "include", "context_management"), list),
    "tool_choice": (str, dict),
}
"""The types of the fields that have one type, or one of two."""


class ResponseRequest(NamedTuple):
    body: dict[str, Any]
    """The body as the client sent it, without null fields."""
    items: list[Item]
    """The input of the request, each item in its full form."""
    conversation: str | None
    previous: str | None
    is_stored: bool
    is_streamed: bool
    is_background: bool
    truncation: str
    """"auto" if a prompt that is too long for the model is made shorter, "disabled" if such a prompt is refused."""
    compact_threshold: int | None
    """Length from which on the prompt is made shorter, in tokens. None for the length of the model's window."""
    replaced: str | None = None
    """The id of the response that this request generates anew. None for a request that does not repeat one."""
    followed: Sequence[Item] = ()
    """Items between `previous` and the input that are not stored. A WebSocket connection remembers them."""
    left_out: tuple[str, ...] = ()
    """Types of the tools that the model is not given (api/wire/responses/tools.py)."""


def request_of(body: dict[str, Any], default_truncation: str = "disabled") -> ResponseRequest:
    """Parses the body of a request. Raises InvalidRequest."""
    given = {name: value for name, value in body.items() if value is not None}
    for name, kinds in TYPES.items():
        if name in given and (
            not isinstance(given[name], kinds) or isinstance(given[name], bool) is not (kinds is bool)
        ):
            raise InvalidRequest(f"{name} has a wrong type", name, "invalid_type")
    if "model" not in given:
        raise InvalidRequest("model is missing", "model", "missing_required_parameter")
    conversation, previous = _conversation(given.get("conversation")), given.get("previous_response_id")
    if conversation and previous:
        raise InvalidRequest(
            "a response follows a conversation or a previous response, not both", "conversation", "invalid_value"
        )
    given.pop("client_metadata", None)
    _check_tool_choice(given.get("tool_choice", "auto"))
    tools = offered(given.get("tools", ()), given.get("tool_choice", "auto"))
    if "tools" in given:
        given["tools"] = tools.tools
    _check_include(given.get("include", ()))
    _check_reasoning(given.get("reasoning", {}))
    truncation, threshold = _truncation(given, default_truncation)
    if given.get("background") and not given.get("store", True):
        raise InvalidRequest("a response in the background must be stored", "background", "invalid_value")
    given["metadata"] = metadata_of(given.get("metadata"))
    items = _input(given.get("input", []))
    if not items and not conversation and not previous:
        raise InvalidRequest("input is missing", "input", "missing_required_parameter")
    return ResponseRequest(
        body=given,
        items=items,
        conversation=conversation,
        previous=previous,
        is_stored=given.get("store", True),
        is_streamed=given.get("stream", False),
        is_background=given.get("background", False),
        truncation=truncation,
        compact_threshold=threshold,
        left_out=tools.left_out,
    )


OVERRIDES = KNOWN - {"conversation", "input", "previous_response_id", "store"}
"""Fields that a client may change when it has a response generated anew."""
REGENERATED_FROM = "regenerated_from"
"""Key in the metadata of a response that was generated anew. Its value is the id of the response that was repeated. The
key does not count towards the keys that a client may set.
"""


def request_again(asked: Asked, overrides: dict[str, Any], default_truncation: str = "disabled") -> ResponseRequest:
    """The request that generates a stored response anew, with `overrides` in its body. The new response is a sibling of
    the stored one. Raises InvalidRequest.
    """
    repeated = {name: value for name, value in asked.body.items() if name not in ("background", "stream")}
    repeated["metadata"] = {name: text for name, text in asked.body["metadata"].items() if name != REGENERATED_FROM}
    request = request_of(repeated | {"input": asked.items} | overrides, default_truncation)
    request.body["metadata"][REGENERATED_FROM] = asked.response
    return request._replace(replaced=asked.response)


def response_of(request: ResponseRequest, response_id: str, created_at: int, slo_class: SloClass) -> dict[str, Any]:
    """The response object before anything is generated. `created_at` is in seconds since 1970. `slo_class`: the class
    that the request is served in.
    """
    body = request.body
    reasoning = body.get("reasoning") or {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "queued" if request.is_background else "in_progress",
        "background": request.is_background,
        "completed_at": None,
        "conversation": {"id": request.conversation} if request.conversation else None,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": body["metadata"],
        "model": body["model"],
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "presence_penalty": 0.0,
        "previous_response_id": request.body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": tier_of(slo_class),
        "store": request.is_stored,
        "temperature": body.get("temperature", 1.0),
        "text": {"format": (body.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": [_tool(tool) for tool in body.get("tools", [])],
        "top_logprobs": body.get("top_logprobs", 0),
        "top_p": body.get("top_p", 1.0),
        "truncation": request.truncation,
        "usage": None,
        "user": body.get("user"),
    }


def _input(value: Any) -> list[Item]:
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    return items_of(value, "input", MAX_INPUT_ITEMS)


def _check_tool_choice(choice: Any) -> None:
    """Raises InvalidRequest for a wrong form. Whether a named tool exists is not checked here."""
    if isinstance(choice, dict):
        is_one = choice.get("type") == "function" and isinstance(choice.get("name"), str)
    else:
        is_one = choice in _TOOL_CHOICES
    if not is_one:
        raise InvalidRequest(
            "tool_choice must be 'none', 'auto', 'required' or a function", "tool_choice", "invalid_value"
        )


def _check_include(wanted: Sequence[Any]) -> None:
    """Raises InvalidRequest for a value that OpenAI does not have."""
    for number, name in enumerate(wanted):
        if name not in INCLUDABLE:
            raise InvalidRequest(
                f"include may have {', '.join(sorted(INCLUDABLE))}", f"include[{number}]", "invalid_value"
            )


def _check_reasoning(reasoning: dict[str, Any]) -> None:
    """Raises InvalidRequest for an unknown field of `reasoning`, and for a wrong value of a field about summaries."""
    for name, value in reasoning.items():
        if name not in ("effort", *_SUMMARIES_OF_REASONING):
            raise InvalidRequest(f"reasoning.{name} is not supported", f"reasoning.{name}", "unsupported_parameter")
        if name in _SUMMARIES_OF_REASONING and value not in (None, "auto", "concise", "detailed"):
            raise InvalidRequest(
                f"reasoning.{name} must be 'auto', 'concise' or 'detailed'", f"reasoning.{name}", "invalid_value"
            )


def _truncation(given: dict[str, Any], default: str) -> tuple[str, int | None]:
    """The truncation, and the smallest threshold of `context_management`. An entry of `context_management` turns
    truncation on, and may have no threshold.
    """
    truncation = given.get("truncation", default)
    if truncation not in ("auto", "disabled"):
        raise InvalidRequest("truncation must be 'auto' or 'disabled'", "truncation", "invalid_value")
    thresholds = [
        _compact_threshold(entry, f"context_management[{number}]")
        for number, entry in enumerate(given.get("context_management", ()))
    ]
    if not thresholds:
        return truncation, None
    return "auto", min((threshold for threshold in thresholds if threshold is not None), default=None)


def _compact_threshold(entry: Any, param: str) -> int | None:
    if not isinstance(entry, dict) or entry.get("type") != "compaction":
        raise InvalidRequest(
            "entries of context_management must have the type 'compaction'", f"{param}.type", "unsupported_value"
        )
    threshold = entry.get("compact_threshold")
    if threshold is None:
        return None
    if type(threshold) is not int or threshold < MIN_COMPACT_THRESHOLD:
        raise InvalidRequest(
            f"compact_threshold must be a number of tokens, at least {MIN_COMPACT_THRESHOLD}",
            f"{param}.compact_threshold",
            "invalid_value",
        )
    return threshold


def _conversation(value: Any) -> str | None:
    found = value.get("id") if isinstance(value, dict) else value
    if found is not None and not isinstance(found, str):
        raise InvalidRequest("conversation must be an id, or an object with one", "conversation", "invalid_type")
    return found


def _tool(tool: Any) -> Any:
    """A tool as the response object shows it. OpenAI's client in strict mode requires `parameters` and `strict` of a
    function.
    """
    return {"parameters": None, "strict": None, **tool} if tool["type"] == "function" else tool
