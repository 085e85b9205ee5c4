"""A pydantic model, validated up to the first entry of a list that is wrong.

pydantic collects all errors. A list of 20,000 empty messages has 300,000 of them, fifteen for each as there are fifteen
reasons why it is none of the kinds of message: two seconds of the event loop and 500 MiB. Lists may be told to fail
fast, but only where they are annotated; so the schema that pydantic has made of a model is taken, and its lists are
told.
"""

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator

M = TypeVar("M")

_FAIL_FAST = frozenset({"list", "set", "frozenset", "tuple"})
"""Types of a schema that can."""


class FailFast(Generic[M]):
    def __init__(self, model: type[BaseModel] | TypeAdapter[Any]) -> None:
        self.fields = frozenset() if isinstance(model, TypeAdapter) else frozenset(model.model_fields)
        if isinstance(model, TypeAdapter):
            model.rebuild(raise_errors=True)
        else:
            model.model_rebuild()  # the official client's models are not built until they are used
        schema = model.core_schema if isinstance(model, TypeAdapter) else model.__pydantic_core_schema__
        # Without what models have prepared for themselves: the lists in them would go on
        self._validator = SchemaValidator(_failing_fast(schema), _use_prebuilt=False)

    def validate(self, value: Any, **options: Any) -> M:
        """`options`: of `validate_python`. Raises ValidationError."""
        validated: M = self._validator.validate_python(value, **options)
        return validated


def first_error(error: ValidationError) -> ErrorDetails:
    """Without the value that is wrong, which may be large."""
    return error.errors(include_url=False, include_context=False, include_input=False)[0]


def _failing_fast(schema: Any) -> Any:
    if isinstance(schema, dict):
        kind = schema.get("type")  # a schema, where this is not a table of fields of which one is named so
        told = {"fail_fast": True} if isinstance(kind, str) and kind in _FAIL_FAST else {}
        return {name: _failing_fast(part) for name, part in schema.items()} | told
    if isinstance(schema, list):
        return [_failing_fast(part) for part in schema]
    return schema
