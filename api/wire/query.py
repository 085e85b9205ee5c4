"""Parameters of a query string that hold a flag or a number."""

from collections.abc import Mapping

from cluster.errors import InvalidRequest

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
MAX_DIGITS = 9
"""Digits of a number in a query string. All numbers of nine digits fit a signed integer of 32 bits; more need not."""


def flag_in(query: Mapping[str, str], name: str) -> bool:
    """The value of a flag, and False if the parameter is absent. Raises InvalidRequest."""
    value = _FLAGS.get(query.get(name, "false").lower())
    if value is None:
        raise InvalidRequest(f"{name} must be true or false", name, "invalid_value")
    return value


def number_in(query: Mapping[str, str], name: str) -> int | None:
    """The value of a whole number, and None if the parameter is absent. Raises InvalidRequest."""
    value = query.get(name)
    if value is not None and not (value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS):
        raise InvalidRequest(f"{name} must be a whole number", name, "invalid_value")
    return None if value is None else int(value)
