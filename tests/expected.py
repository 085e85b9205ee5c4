"""What a test expects of a value, where its type allows more: the value in the type that is expected, or an error."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    assert value is not None
    return value


def of_kind(kind: type[T], value: object) -> T:
    assert isinstance(value, kind), value
    return value
