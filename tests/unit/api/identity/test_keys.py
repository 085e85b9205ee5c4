"""The form of API keys, and what errors tell of them."""

import os
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from api.identity.keys import ALPHABET, PREFIX, RANDOM_BYTES, digest, handle_in, new_key
from cluster.errors import Unauthorized

randoms = st.binary(min_size=RANDOM_BYTES, max_size=2 * RANDOM_BYTES)


@given(randoms)
def test_new_key_has_the_form_and_its_own_handle(random: bytes) -> None:
    key = new_key(random)
    prefix, handle, secret = key.text[:9], key.text[9:17], key.text[18:]
    assert (prefix, key.text[17], handle, len(secret)) == (PREFIX, "-", key.handle, 46)
    assert set(handle + secret) <= set(ALPHABET)
    assert handle_in(key.text) == key.handle and key.digest == digest(key.text) and len(key.digest) == 32


@given(randoms, st.data())
def test_key_with_a_wrong_character_is_refused(random: bytes, data: st.DataObject) -> None:
    text = new_key(random).text
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(string.ascii_letters + string.digits + "-_ \n"))
    assume(other != text[at])
    refused(text[:at] + other + text[at + 1 :])


@given(randoms, st.integers(0, 62))
def test_key_that_is_cut_or_exchanged_is_refused(random: bytes, at: int) -> None:
    text = new_key(random).text
    refused(text[:at])
    exchanged = text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
    if exchanged != text:
        refused(exchanged)


@given(st.text(max_size=100))
def test_any_text_is_refused_without_being_shown(text: str) -> None:
    refused(text)


def refused(text: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        handle_in(text)
    error = caught.value
    assert (error.http_status, error.code) == (401, "invalid_api_key")
    shown = str(error)
    secret = text.removeprefix(PREFIX)[9:]
    longest = max((n for n in range(len(secret) + 1) if n and secret[-n:] in shown), default=0)
    assert len(secret) < 10 or longest <= 6


@pytest.mark.parametrize("text", ["", "sk-proj-abc", "unused", "sk-baton-", "sk-baton-AbCd1234-short", "é" * 64])
def test_text_of_another_form_is_told_what_a_key_begins_with(text: str) -> None:
    with pytest.raises(Unauthorized, match=PREFIX):
        handle_in(text)


def test_short_text_is_not_shown_at_all() -> None:
    with pytest.raises(Unauthorized) as caught:
        handle_in("hunter2")
    assert "ter2" not in str(caught.value)


def test_handle_tells_nothing_of_the_secret() -> None:
    """Keys of random bytes that differ in their last bytes alone have other secrets and the same handle."""
    random = os.urandom(RANDOM_BYTES)
    keys = {new_key(random[:-1] + bytes([last])).text[18:58] for last in range(50)}
    assert len(keys) == 50


def test_too_few_random_bytes_make_no_key() -> None:
    with pytest.raises(ValueError, match="48"):
        new_key(bytes(31))


def test_characters_are_equally_likely() -> None:
    drawn = "".join(new_key(os.urandom(RANDOM_BYTES)).text[18:58] for _ in range(500))
    counts = [drawn.count(character) for character in ALPHABET]
    assert min(counts) > 200 and max(counts) < 450  # 323 on average
