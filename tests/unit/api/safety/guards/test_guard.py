"""Excerpts have all of a text, and a guard whose config cannot be followed is not made."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.guards.guard import DIALECTS, OVERLAP_CHARS, Guard, excerpts
from cluster.config.safety import GuardConfig

URL = "http://127.0.0.1:8000/v1"


@given(st.integers(0, 12_000), st.integers(1000, 3000), st.data())
def test_each_short_passage_is_in_one_excerpt(length: int, most: int, data: st.DataObject) -> None:
    text = "".join(chr(0x4E00 + number) for number in range(length))
    found = excerpts(text, most)
    begin = data.draw(st.integers(0, length))
    passage = text[begin : begin + OVERLAP_CHARS]
    assert any(passage in excerpt for excerpt in found)
    assert max(map(len, found)) <= most
    assert len(found) == 1 or sum(map(len, found)) < 2 * length


@pytest.mark.parametrize("value", [None, "", " ", "two\nlines", "schlüssel"])
def test_key_that_cannot_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv("GUARD_KEY", value)
    with pytest.raises(ValueError, match="GUARD_KEY"):
        Guard(GuardConfig(url=URL, model="m", dialect="moderations", key_variable="GUARD_KEY"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_config_knows_each_dialect(dialect: str) -> None:
    assert msgspec.convert({"url": URL, "model": "m", "dialect": dialect}, GuardConfig).url == URL


@pytest.mark.parametrize(
    "url",
    [
        "",
        "guard:8000",
        "ftp://guard/v1",
        "http://",
        "http://me:secret@guard/v1",
        "http://guard/v1?key=1",
        "http://a b/",
    ],
)
def test_url_that_is_none_or_has_credentials_is_refused(url: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.url"):
        msgspec.convert({"url": url, "model": "m", "dialect": "moderations"}, GuardConfig)


def test_dialect_that_nobody_speaks_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\.dialect"):
        msgspec.convert({"url": URL, "model": "m", "dialect": "oracle"}, GuardConfig)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_field_that_the_dialect_sets_is_refused(dialect: str) -> None:
    own = "input" if dialect == "moderations" else "temperature"
    config = {"url": URL, "model": "m", "dialect": dialect, "extra_body": {own: 1, "seed": 1}}
    with pytest.raises(ValueError, match=f"extra_body: the dialect {dialect} sets {own} itself"):
        Guard(msgspec.convert(config, GuardConfig))


def test_guard_that_is_asked_otherwise_has_another_version() -> None:
    bodies: list[dict[str, Any]] = [{}, {"seed": 1}, {"seed": 2}]
    guards = [Guard(GuardConfig(url=URL, model="m", dialect="llama_guard", extra_body=body)) for body in bodies]
    assert guards[0].version == "llama_guard:m" and len({guard.version for guard in guards}) == 3
