"""A JSON value as its difference to a base value. Where both are stored together, each text in them is stored once."""

from typing import Any

Difference = Any
"""A JSON value: SAME, or a list of two entries, which are one of the kinds below and its content."""

SAME = 0
"""The difference between equal values."""
_VALUE, _CHANGED, _OBJECT, _LIST = "value", "changed", "object", "list"


def difference(value: Any, base: Any) -> Difference:
    """The difference from which `applied`, with the same base, makes the value. Even the order of the keys of objects
    and the types of numbers are restored.
    """
    if _is_same(value, base):
        return SAME
    if isinstance(value, dict) and isinstance(base, dict):
        if list(value) == list({**base, **value}):
            changed = {name: field for name, field in value.items() if not _is_field_of(base, name, field)}
            return [_CHANGED, {name: _of_field(field, base, name) for name, field in changed.items()}]
        return [_OBJECT, {name: _of_field(field, base, name) for name, field in value.items()}]
    if isinstance(value, list) and isinstance(base, list) and len(value) == len(base):
        return [_LIST, [difference(one, other) for one, other in zip(value, base, strict=True)]]
    return [_VALUE, value]


def applied(changes: Difference, base: Any) -> Any:
    """The value whose difference to the base is `changes`."""
    if changes == SAME:
        return base
    kind, content = changes
    if kind == _VALUE:
        return content
    if kind == _LIST:
        return [applied(one, other) for one, other in zip(content, base, strict=True)]
    fields = {name: applied(field, base.get(name)) for name, field in content.items()}
    return {**base, **fields} if kind == _CHANGED else fields


def _of_field(field: Any, base: dict[str, Any], name: str) -> Difference:
    return difference(field, base[name]) if name in base else [_VALUE, field]


def _is_field_of(base: dict[str, Any], name: str, field: Any) -> bool:
    return name in base and _is_same(field, base[name])


def _is_same(value: Any, base: Any) -> bool:
    """Whether two values are the same JSON. 1, 1.0 and true are three values, and 0.0 and -0.0 are two."""
    if value is base:
        return True
    if type(value) is not type(base):
        return False
    if isinstance(value, dict):
        return list(value) == list(base) and all(_is_same(field, base[name]) for name, field in value.items())
    if isinstance(value, list):
        return len(value) == len(base) and all(map(_is_same, value, base))
    return repr(value) == repr(base) if isinstance(value, float) else bool(value == base)
