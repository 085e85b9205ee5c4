from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from api.wire.fingerprint import fingerprint

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aä\n", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=4),
    max_leaves=10,
)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(inner) for inner in value] if isinstance(value, list) else value


@given(JSON)
def test_order_of_the_fields_does_not_matter(body: Any) -> None:
    assert fingerprint("t", "/v1/responses", body) == fingerprint("t", "/v1/responses", reordered(body))


@given(JSON, JSON)
def test_other_bodies_have_others(one: Any, other: Any) -> None:
    same = msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
    assert (fingerprint("t", "/v1/responses", one) == fingerprint("t", "/v1/responses", other)) == same


def test_other_tenants_and_endpoints_have_others() -> None:
    asked = {fingerprint(tenant, endpoint, {}) for tenant in ("a", "b") for endpoint in ("/v1/responses", "/v1/files")}
    assert len(asked) == 4
