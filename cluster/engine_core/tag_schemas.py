"""Structural tags without the keywords that xgrammar has no bounds for. Pure.

vLLM's tool parsers make a tag of the tools of a request: the syntax of the model's calls around the schemas of their
arguments. A keyword that is dropped is not enforced in arguments; the rest of the schema is.
"""

import json
from typing import Any

MAX_MIN_LENGTH = 1
"""Largest enforced `minLength` of strings: they are not empty. With a vocabulary of 131,072 tokens, xgrammar compiles
20 ms longer for each character that it must count. More makes compiling slower; 0 would allow empty strings.
"""
MAX_ITEMS = 1_000
"""Largest enforced number of items in arrays and of properties in objects. More makes compiling slower; fewer enforces
less.
"""

_DROPPED = ("pattern", "patternProperties", "maxLength")
_MOST = {"minLength": MAX_MIN_LENGTH} | dict.fromkeys(
    ("minItems", "maxItems", "minProperties", "maxProperties"), MAX_ITEMS
)


def bounded_tag(tag: str) -> str:
    """The tag with bounded schemas. Raises ValueError if the tag is not JSON."""
    return json.dumps(_without_schemas(json.loads(tag)))


def _without_schemas(value: Any) -> Any:
    """Change only what is within a schema: fields of the tag itself may have names of keywords."""
    if isinstance(value, dict):
        return {
            name: _bounded(inner) if name in ("json_schema", "schema") else _without_schemas(inner)
            for name, inner in value.items()
        }
    return [_without_schemas(inner) for inner in value] if isinstance(value, list) else value


def _bounded(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _bounded_value(name, value) for name, value in schema.items() if not _is_dropped(name, value)}
    return [_bounded(inner) for inner in schema] if isinstance(schema, list) else schema


def _bounded_value(name: str, value: Any) -> Any:
    if name == "properties" and isinstance(value, dict):  # names of properties are no keywords
        return {inner: _bounded(schema) for inner, schema in value.items()}
    return value if name in ("enum", "const", "default", "examples") else _bounded(value)


def _is_dropped(name: str, value: Any) -> bool:
    return name in _DROPPED or (name in _MOST and isinstance(value, int | float) and value > _MOST[name])
