"""How deeply JSON may be nested. Pure."""

from typing import Any

from cluster.errors import InvalidRequest

MAX_DEPTH = 64
"""Of what a client sends, a JSON schema say."""


def check_depth(value: Any, param: str) -> None:
    """Raises InvalidRequest."""
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
