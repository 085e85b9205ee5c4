"""The items of a conversation (OpenAI's Responses items), as clients send them and get them back. The store of items
is api/state/postgres/stores/items.py.
"""

from typing import Annotated, Any

from openai.types.responses import (
    EasyInputMessage,
    ResponseCompactionItemParam,
    ResponseFunctionToolCall,
    ResponseInputFile,
    ResponseInputImage,
    ResponseInputText,
    ResponseOutputRefusal,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_input_item import FunctionCallOutput, ItemReference
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from api.wire.validation import FailFast, first_error
from cluster.errors import InvalidRequest

MAX_ITEMS = 20
"""Items in one request that creates a conversation or adds to one, as OpenAI limits them. Lower values refuse requests
that OpenAI accepts; higher values take longer to validate and to store in one transaction.
"""
MAX_PARTS = 2000
"""Parts of one item. Lower values refuse long messages; higher values take longer to validate."""

Item = dict[str, Any]

_MODELS: dict[str, FailFast[BaseModel]] = {
    "message": FailFast(EasyInputMessage),
    "function_call": FailFast(ResponseFunctionToolCall),
    "function_call_output": FailFast(FunctionCallOutput),
    "reasoning": FailFast(ResponseReasoningItem),
    "compaction": FailFast(ResponseCompactionItemParam),
    "item_reference": FailFast(ItemReference),
}
_LISTS = ("content", "output", "summary")
"""Fields of an item that may be lists of parts."""
_STATUS = ("in_progress", "completed", "incomplete")
_INPUT_PARTS: FailFast[Any] = FailFast(
    TypeAdapter(
        list[Annotated[ResponseInputText | ResponseInputImage | ResponseInputFile, Field(discriminator="type")]]
    )
)
_OUTPUT_PARTS: FailFast[Any] = FailFast(
    TypeAdapter(list[Annotated[ResponseOutputText | ResponseOutputRefusal, Field(discriminator="type")]])
)


def items_of(value: Any, param: str = "items", most: int = MAX_ITEMS) -> list[Item]:
    """The items that a client sends, each in its full form and without unknown fields.

    Raises InvalidRequest with the path of the field that is wrong.
    """
    if not isinstance(value, list):
        raise InvalidRequest(f"{param} must be a list of items", param, "invalid_type")
    if len(value) > most:
        raise InvalidRequest(f"{param} has {len(value)} items, and may have {most}", param, "array_above_max_length")
    return [_item(item, f"{param}[{number}]") for number, item in enumerate(value)]


def _item(value: Any, param: str) -> Item:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param} must be an object", param, "invalid_type")
    kind = value.get("type")
    if kind is None:
        kind = "item_reference" if "id" in value and value.keys() <= {"id", "type"} else "message"
    if not isinstance(kind, str) or kind not in _MODELS:
        raise InvalidRequest(f"items of type {kind!r} are not supported here", f"{param}.type", "unsupported_value")
    if value.get("status") not in (None, *_STATUS):
        raise InvalidRequest(f"status must be one of {', '.join(_STATUS)}", f"{param}.status", "invalid_value")
    _check_size(value, param)
    if kind == "message":
        return _message(value, param)
    item = _checked(_MODELS[kind].validate, {**value, "type": kind}, param)
    return {"status": "completed"} | _without_nulls(item) | {"type": kind}  # a status of null is dropped


def _check_size(value: Item, param: str) -> None:
    for name in _LISTS:
        parts = value.get(name)
        if isinstance(parts, list) and len(parts) > MAX_PARTS:
            raise InvalidRequest(
                f"{name} has {len(parts)} parts, and may have {MAX_PARTS}", f"{param}.{name}", "array_above_max_length"
            )


def _message(value: Item, param: str) -> Item:
    role, content = value.get("role"), value.get("content")
    by_assistant = role == "assistant"
    if isinstance(content, str):
        content = [{"type": "output_text" if by_assistant else "input_text", "text": content}]
    if by_assistant and isinstance(content, list):
        content = [{"annotations": [], "logprobs": [], **part} if _is_text(part) else part for part in content]
    parts = _checked((_OUTPUT_PARTS if by_assistant else _INPUT_PARTS).validate, content, f"{param}.content")
    shell = _checked(_MODELS["message"].validate, {"role": role, "content": ""}, param)
    return {
        "type": "message",
        "role": shell.role,
        "status": value.get("status") or "completed",
        "content": [_without_nulls(part) for part in parts],
    }


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "output_text"


def _checked(validate: Any, value: Any, param: str) -> Any:
    try:
        return validate(value, extra="ignore")
    except ValidationError as error:
        first = first_error(error)
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        code = "missing_required_parameter" if first["type"] == "missing" else "invalid_value"
        raise InvalidRequest(f"{first['msg']} (at {param}{path})", f"{param}{path}", code) from error


def _without_nulls(model: BaseModel) -> Item:
    return model.model_dump(exclude_none=True, by_alias=True)
