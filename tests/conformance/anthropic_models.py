"""Anthropic's Messages API as the models of its official client describe it: Anthropic publishes no OpenAPI document.

The client takes fields that its models do not have, and values of another type. Here, both are deviations.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import BaseModel, TypeAdapter, ValidationError

MESSAGE, COUNT, EVENT, ERROR = (
    f"anthropic.{name}" for name in ("Message", "MessageTokensCount", "RawMessageStreamEvent", "ErrorResponse")
)
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    MESSAGE: TypeAdapter(Message),
    COUNT: TypeAdapter(MessageTokensCount),
    EVENT: TypeAdapter(RawMessageStreamEvent),
    ERROR: TypeAdapter(ErrorResponse),
}
_TOO_LARGE = "request_too_large"
"""The type of the errors with status 413, in Anthropic's documentation. The models of its client lack it."""


class Fault(NamedTuple):
    path: str
    """The place in the body, such as `/content/0/text`."""
    message: str


def is_of_anthropic(schema: str) -> bool:
    return schema in _ADAPTERS


def faults(schema: str, value: Any) -> Iterator[Fault]:
    """Where a body or an event deviates from the model."""
    if schema == ERROR and value.get("error", {}).get("type") == _TOO_LARGE:
        value = value | {"error": value["error"] | {"type": "invalid_request_error"}}
    try:
        model = _ADAPTERS[schema].validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        for one in error.errors():
            yield Fault("".join(f"/{step}" for step in one["loc"]), one["msg"])
    else:
        yield from _unknown(model, "")


def _unknown(value: Any, path: str) -> Iterator[Fault]:
    """Fields that the model does not have."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield Fault(f"{path}/{name}", "Anthropic's model has no such field")
        for name in value.model_fields_set - (value.model_extra or {}).keys():
            yield from _unknown(getattr(value, name), f"{path}/{name}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _unknown(one, f"{path}/{number}")
