"""The keys of an issuer, from documents that whoever answers at its address may have written."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.identity.signing_keys import MAX_KEYS, JwksUnavailable, keys_in

KEY = {"kty": "RSA", "kid": "a"}


def a_text(value: Any) -> bytes:
    return json.dumps(value).encode()


def a_document(*keys: Any) -> bytes:
    return a_text({"keys": keys})


def test_keys_that_sign_are_found_by_name_and_type_and_the_first_of_two_counts() -> None:
    first, second, without_name = KEY | {"n": "1"}, KEY | {"n": "2"}, {"kty": "EC", "use": "sig"}
    found = keys_in(a_document(first, second, without_name, KEY | {"kid": "b", "use": "enc"}))
    assert found == {("a", "RSA"): first, (None, "EC"): without_name}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "no JWKS"),
        (b"<html>", "no JWKS"),
        (b"[]", "no JWKS"),
        (b"{}", "no JWKS"),
        (b'{"keys": 1}', "no JWKS"),
        (b'{"keys": "abc"}', "no JWKS"),
        (b'{"keys": {"a": 1}}', "no JWKS"),
        (b'{"keys": [1]}', "no JWKS"),
        (a_document(KEY).replace(b'"a"', b'"\xff"'), "no JWKS"),
        (a_document(KEY).replace(b'"a"', b"9" * 5000), "no JWKS"),
        (a_document(KEY).decode().encode("utf-16"), "no JWKS"),
        (b'{"keys": ' + b"[" * 100_000, "no JWKS"),
        (a_document(), "0 usable keys"),
        (a_document(KEY | {"kty": ["RSA"]}), "0 usable keys"),
        (a_document(*[KEY | {"kid": str(number)} for number in range(MAX_KEYS + 1)]), f"{MAX_KEYS + 1} usable keys"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else value,
)
def test_document_that_is_none_is_refused(document: bytes, why: str) -> None:
    with pytest.raises(JwksUnavailable, match=why):
        keys_in(document)


SCALARS = st.sampled_from([None, True, 0, -(10**30), 1.5, "", "sig", "\x00\ud7ff"])
JSON = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from(["keys", "kty"]), SCALARS, max_size=2)
KEYS = st.fixed_dictionaries(
    {}, optional={"kty": st.sampled_from(["RSA", "EC", "OKP", "oct"]) | JSON, "kid": JSON, "use": JSON}
)


@settings(max_examples=50)
@given(st.binary() | (JSON | st.lists(KEYS | JSON, max_size=3).map(lambda keys: {"keys": keys})).map(a_text))
def test_any_document_gives_keys_of_known_types_or_is_refused(document: bytes) -> None:
    try:
        found = keys_in(document)
    except JwksUnavailable:
        return
    assert found
    for (kid, kind), key in found.items():
        assert kind in {"RSA", "EC", "OKP"} and (kid is None or isinstance(kid, str))
        assert key["kty"] == kind
