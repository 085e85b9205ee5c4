"""The number of JSON values in a text is known before the text is decoded."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.limits.structure import (
    MAX_CONTAINERS,
    MAX_DIGITS_IN_A_ROW,
    MAX_MEMBERS,
    MAX_VALUES,
    check_structure,
    nesting_of,
)
from cluster.errors import InvalidRequest

PUNCTUATION = st.text('[]{},:"\\a1', max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | PUNCTUATION,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(PUNCTUATION, inner, max_size=5),
    max_leaves=30,
)


def counted(value: Any) -> tuple[int, int, int]:
    """Numbers of containers, members and entries of a decoded value."""
    if isinstance(value, dict):
        inner = [counted(one) for one in value.values()]
    elif isinstance(value, list):
        inner = [counted(one) for one in value]
    else:
        return 0, 0, 0
    containers, members, entries = (sum(column) for column in zip(*inner, strict=True)) if inner else (0, 0, 0)
    return containers + 1, members + isinstance(value, dict) * len(value), entries + len(value)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(VALUES)
def test_never_fewer_are_counted_than_there_are(value: list[Any] | dict[str, Any] | int | str | None) -> None:
    counts = check_structure(json.dumps(value).encode())
    containers, members, entries = counted(value)
    assert counts.containers >= containers
    assert counts.members >= members
    assert counts.values >= entries


@given(VALUES)
def test_nesting_is_that_of_the_decoded_value(value: list[Any] | dict[str, Any] | int | str | None) -> None:
    assert nesting_of(json.dumps(value).encode()) == depth(value)


@given(st.binary(max_size=200))
def test_what_is_no_json_is_left_to_who_decodes_it(text: bytes) -> None:
    check_structure(text)


@pytest.mark.parametrize("slice_bytes", [1, 2, 3, 7, 1 << 20])
def test_what_stands_in_a_text_does_not_count_once_there_is_too_much_of_it(slice_bytes: int) -> None:
    text = json.dumps({"a": '[{,:"\\' * MAX_VALUES if slice_bytes > 7 else "[" * (MAX_CONTAINERS + 1) + '"\\'}).encode()
    assert check_structure(text, slice_bytes)[:2] == (1, 1)


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"[]," * MAX_CONTAINERS + b"[]]",
        b"[" + b"{}," * MAX_CONTAINERS + b"{}]",
        b"[" * (MAX_CONTAINERS + 1),
        b"[" + b"1," * MAX_VALUES + b"1]",
        b"{" + b'"":1,' * MAX_MEMBERS + b'"":1}',
        b'["' + b'\\"' * 100 + b'",' + b"[]," * MAX_CONTAINERS + b"[]]",
    ],
)
def test_more_than_is_decoded_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="more than") as refused:
        check_structure(text)
    assert refused.value.code == "request_too_large"


def test_numbers_without_end_are_refused_and_texts_of_digits_are_not() -> None:
    digits = b"1" * 300_000
    with pytest.raises(InvalidRequest, match=f"more than {MAX_DIGITS_IN_A_ROW} digits"):
        check_structure(b'{"a":' + digits + b"}")
    check_structure(b'{"a":"' + digits + b'"}')
