"""Single parameters of a query string."""

from collections.abc import Mapping

from cluster.errors import InvalidRequest

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
MAX_DIGITS = 9


def flag_in(query: Mapping[str, str], name: str) -> bool:
    """False where it is absent. Raises InvalidRequest."""
    value = _FLAGS.get(query.get(name, "false").lower())
    if value is None:
        raise InvalidRequest(f"{name} must be true or false", name, "invalid_value")
    return value


def number_in(query: Mapping[str, str], name: str) -> int | None:
    """None where it is absent. Raises InvalidRequest."""
    value = query.get(name)
    if value is not None and not (value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS):
        raise InvalidRequest(f"{name} must be a whole number", name, "invalid_value")
    return None if value is None else int(value)
