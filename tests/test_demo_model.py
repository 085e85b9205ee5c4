"""The files of the demo model fit each other."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from cluster.repository import REPO_ROOT

MODEL = REPO_ROOT / "conf" / "models" / "baton-demo"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(names) == len({*names}), f"a name is there twice: {sorted({n for n in names if names.count(n) > 1})}"
    return dict(pairs)


def test_each_row_of_the_embedding_is_one_token(tokenizer: Tokenizer) -> None:
    """Of two entries with one name, a reader of JSON takes the last one, and the other row is never found."""
    json.loads((MODEL / "tokenizer.json").read_text(), object_pairs_hook=without_repeats)
    rows = json.loads((MODEL / "config.json").read_text())["vocab_size"]
    assert sorted(tokenizer.get_vocab().values()) == list(range(rows))


def test_each_byte_comes_back(tokenizer: Tokenizer) -> None:
    text = "".join(chr(code) for code in range(0x20, 0x800)) + "€日😀\n\t"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
