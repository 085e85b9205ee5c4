"""A Responses request as the chat completion request that generates its answer."""

from collections.abc import Sequence
from typing import Any

from api.wire.responses.tools import called_name, functions_of
from cluster.errors import InvalidRequest

Item = dict[str, Any]
Message = dict[str, Any]

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for log probabilities."""

_SAME = ("temperature", "top_p", "parallel_tool_calls", "service_tier", "moderation", "safety_settings")
"""Fields that a Responses request and a chat completion request have in common."""


def chat_body(request: dict[str, Any], model: str, items: Sequence[Item]) -> dict[str, Any]:
    """The body of a streamed chat completion. `items` are in order, with the oldest first. Raises InvalidRequest for
    what a chat completion cannot express.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": chat_messages(items, request.get("instructions")),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body |= {name: request[name] for name in _SAME if request.get(name) is not None}
    if request.get("max_output_tokens") is not None:
        body["max_completion_tokens"] = request["max_output_tokens"]
    if (effort := (request.get("reasoning") or {}).get("effort")) is not None:
        body["reasoning_effort"] = effort
    choice = _tool_choice(request.get("tool_choice") or "auto")
    if functions := functions_of(request.get("tools") or ()):
        body |= {"tools": functions, "tool_choice": choice}
    elif choice not in ("auto", "none"):
        raise InvalidRequest("the model must call a tool, and is given none", "tool_choice", "invalid_value")
    text = request.get("text") or {}
    if text.get("verbosity", "medium") != "medium":
        raise InvalidRequest("text.verbosity must be 'medium'", "text.verbosity", "unsupported_value")
    if response_format := _response_format(text.get("format") or {"type": "text"}):
        body["response_format"] = response_format
    if LOGPROBS in request.get("include", ()) or request.get("top_logprobs"):
        body |= {"logprobs": True, "top_logprobs": request.get("top_logprobs", 0)}
    return body


def num_parts(items: Sequence[Item]) -> int:
    """Items and their parts, in number, which `chat_body` walks."""
    lists = (item.get("content") or item.get("output") or item.get("summary") for item in items)
    return len(items) + sum(len(parts) for parts in lists if isinstance(parts, list))


def chat_messages(items: Sequence[Item], instructions: str | None) -> list[Message]:
    """One message for each item, except that reasoning, text and tool calls of the assistant share one message if they
    follow each other in this order. Raises InvalidRequest for an item that a message cannot express, and for the output
    of a call that is not among the items before it.
    """
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    called = set[str]()
    for item in items:
        match item["type"]:
            case "message" if item["role"] == "assistant":
                text = "".join(part["refusal" if part["type"] == "refusal" else "text"] for part in item["content"])
                _into_assistant(messages, "content", text)
            case "message":
                messages.append({"role": item["role"], "content": _content(item["content"])})
            case "reasoning":
                text = "".join(part["text"] for part in item.get("content") or item.get("summary") or ())
                _into_assistant(messages, "reasoning", text)
            case "function_call":
                function = {"name": called_name(item["name"], item.get("namespace")), "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                called.add(item["call_id"])
                _into_calls(messages, call)
            case "function_call_output" if item["call_id"] not in called:
                raise InvalidRequest(
                    f"No tool call found for function call output with call_id {item['call_id']}.", "input"
                )
            case "function_call_output":
                content = item["output"] if isinstance(item["output"], str) else _content(item["output"])
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
            case kind:
                raise InvalidRequest(f"items of type {kind!r} cannot be part of a prompt", "input", "unsupported_value")
    return messages


def _into_assistant(messages: list[Message], field: str, text: str) -> None:
    last = messages[-1] if messages else {}
    is_open = last.get("role") == "assistant" and last["content"] is None and "tool_calls" not in last
    goes_on = is_open and (field == "content" or field not in last)
    message = last if goes_on else _new_assistant(messages)
    message[field] = text


def _into_calls(messages: list[Message], call: Item) -> None:
    last = messages[-1] if messages else {}
    message = last if last.get("role") == "assistant" else _new_assistant(messages)
    message.setdefault("tool_calls", []).append(call)


def _new_assistant(messages: list[Message]) -> Message:
    messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _content(parts: Sequence[Item]) -> str | list[Item]:
    shown = [_part(part) for part in parts]
    return str(shown[0]["text"]) if len(shown) == 1 and shown[0]["type"] == "text" else shown


def _part(part: Item) -> Item:
    match part["type"]:
        case "input_text" | "output_text":
            return {"type": "text", "text": part["text"]}
        case "input_image" if part.get("image_url"):
            return {
                "type": "image_url",
                "image_url": {"url": part["image_url"], "detail": part.get("detail") or "auto"},
            }
        case kind:
            raise InvalidRequest(f"content of type {kind!r} is not supported here", "input", "unsupported_value")


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    raise InvalidRequest(
        "tool_choice must be 'none', 'auto', 'required' or a function", "tool_choice", "unsupported_value"
    )


def _response_format(text_format: Any) -> Item | None:
    kind = text_format.get("type") if isinstance(text_format, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema":
        declared = {
            name: text_format[name] for name in ("name", "description", "schema", "strict") if name in text_format
        }
        return {"type": "json_schema", "json_schema": declared}
    raise InvalidRequest(
        "text.format must be of type 'text', 'json_object' or 'json_schema'", "text.format", "unsupported_value"
    )
