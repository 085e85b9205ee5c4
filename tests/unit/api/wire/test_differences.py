"""Values that are stored as the difference to a base come back byte by byte."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from api.wire.differences import applied, difference

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False, width=16)
    | st.text(max_size=3)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)


def stored(value: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value))


@given(values, values)
def test_value_comes_back_as_it_was(value: Any, base: Any) -> None:
    told = stored(difference(value, base))
    assert msgspec.json.encode(applied(told, stored(base))) == msgspec.json.encode(value)


@given(values)
def test_same_value_takes_no_room(value: Any) -> None:
    assert msgspec.json.encode(difference(value, stored(value))) == b"0"


def test_long_text_that_both_have_is_not_repeated() -> None:
    long = "x" * 1000
    asked = {"instructions": long, "tools": [{"type": "function", "name": "f", "description": long}], "stream": True}
    body = {
        "id": "resp_1",
        "instructions": long,
        "tools": [{"parameters": None, "strict": None, "type": "function", "name": "f", "description": long}],
    }
    told = difference(asked, body)
    assert len(msgspec.json.encode(told)) < 200
    assert applied(told, body) == asked


def test_change_of_a_field_costs_that_field() -> None:
    base = {"status": "queued", "instructions": "x" * 1000, "usage": None}
    told = difference({**base, "status": "completed", "usage": {"total_tokens": 7}, "context": {}}, base)
    assert len(msgspec.json.encode(told)) < 120
