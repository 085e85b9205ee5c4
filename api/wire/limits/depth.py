"""The bound on how deeply JSON may be nested."""

from typing import Any

from cluster.errors import InvalidRequest

MAX_DEPTH = 64
"""Levels of lists and objects in a field of a request body. Lower refuses deep JSON schemas; higher lets code that is
recursive go deeper.
"""

_OF_ITEMS = frozenset({"input", "items"})
"""Fields of which each entry is checked by itself, so that an error can name the entry."""


def check_depths(body: Any) -> None:
    """Checks every field of a request body. Raises InvalidRequest with the field that is nested too deeply."""
    fields = body.items() if isinstance(body, dict) else [("the request body", body)]
    for name, value in fields:
        if name in _OF_ITEMS and isinstance(value, list):
            for number, item in enumerate(value):
                check_depth(item, f"{name}[{number}]")
        else:
            check_depth(value, name)


def check_depth(value: Any, param: str) -> None:
    """Checks one value. Raises InvalidRequest with `param` if the value is nested too deeply."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise InvalidRequest(f"{param} is nested too deeply", param, "invalid_value")
