"""Validation with a pydantic model that stops at the first wrong entry of each list.

pydantic collects all errors. Each of 20,000 empty messages has 15 errors, because a message may be of several kinds.
These 300,000 errors take 2 seconds of the event loop and 500 MiB. pydantic can stop early (`fail_fast`), but only for
lists that are annotated so in the model. This module therefore copies the core schema of a model, and sets `fail_fast`
on every list in the copy.
"""

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator

from cluster.errors import InvalidRequest

M = TypeVar("M")

_FAIL_FAST = frozenset({"list", "set", "frozenset", "tuple"})
"""Types of pydantic's core schema that have the option `fail_fast`."""


class FailFast(Generic[M]):
    def __init__(self, model: type[BaseModel] | TypeAdapter[Any]) -> None:
        self.fields = frozenset() if isinstance(model, TypeAdapter) else frozenset(model.model_fields)
        if isinstance(model, TypeAdapter):
            model.rebuild(raise_errors=True)
        else:
            model.model_rebuild()  # OpenAI's client builds its models at their first use
        schema = model.core_schema if isinstance(model, TypeAdapter) else model.__pydantic_core_schema__
        # With `_use_prebuilt`, nested models would use their own validators, whose lists do not fail fast
        self._validator = SchemaValidator(_failing_fast(schema), _use_prebuilt=False)

    def validate(self, value: Any, **options: Any) -> M:
        """Validates a value. `options` are those of pydantic's `validate_python`. Raises ValidationError."""
        validated: M = self._validator.validate_python(value, **options)
        return validated


def first_error(error: ValidationError) -> ErrorDetails:
    """The first of the errors, without the wrong value, which may be large."""
    return error.errors(include_url=False, include_context=False, include_input=False)[0]


def deepest_error(error: ValidationError) -> ErrorDetails:
    """The error with the longest path. Of a value that may be of several types, it is the one of the likeliest type."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return max(errors, key=lambda one: len(one["loc"]))


def refusal(wrong: ErrorDetails, body: Any, first_message: int = 0) -> InvalidRequest:
    """An error of pydantic as one of the client that has sent the body. `first_message` is the index of the body's
    first message in the chat of the client.
    """
    param = _path_in(body, wrong["loc"], first_message)
    code = "missing_required_parameter" if wrong["type"] == "missing" else "invalid_value"
    return InvalidRequest(f"{wrong['msg']} (at {param or 'the request'})", param, code)


def _path_in(body: Any, loc: tuple[int | str, ...], first_message: int) -> str | None:
    """The path to the value that pydantic refused, without the names that pydantic gives to the branches of a union."""
    path: list[str] = []
    last = len(loc) - 1
    for i, part in enumerate(loc):
        is_there = part in body if isinstance(body, dict) else isinstance(body, list) and isinstance(part, int)
        if is_there:
            path.append(str(part + first_message if path == ["messages"] and isinstance(part, int) else part))
            body = body[part]
        elif i == last and isinstance(body, dict):  # a missing field
            path.append(str(part))
    return ".".join(path) or None


def _failing_fast(schema: Any) -> Any:
    if isinstance(schema, dict):
        kind = schema.get("type")  # not a string in a table of fields that has a field named "type"
        changed = {"fail_fast": True} if isinstance(kind, str) and kind in _FAIL_FAST else {}
        return {name: _failing_fast(part) for name, part in schema.items()} | changed
    if isinstance(schema, list):
        return [_failing_fast(part) for part in schema]
    return schema
