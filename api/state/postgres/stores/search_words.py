"""The searchable text of items, and its words as the index holds them: PostgreSQL's lexemes, each as a keyed hash.
Pure.

A person with access to the disk can see which messages share a word, and how often, but cannot see the word.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

MAX_SEARCHED = 20_000
"""Characters of a message that are indexed. More finds more; fewer keeps the index smaller."""
HASH_BYTES = 6
"""Bytes of a word's hash, which make eight characters. Fewer lets more words share a hash, and find each other; more
makes the index larger. Of a million words, a few thousand at most share a hash of 6 bytes.
"""
HIT_BEGINS, HIT_ENDS = "\x02", "\x03"
"""The marks around the words of a text that a query has found."""
EXCERPT, BEFORE_HIT = 160, 60
"""Characters of an excerpt, and those of them that may stand before the first hit."""

_QUOTED = re.compile(r"'((?:[^']|'')*)'")
"""A lexeme in PostgreSQL's format of vectors and queries."""
_NOT_STORED = str.maketrans(dict.fromkeys(map(chr, (0, 2, 3)), " "))


def text_of(item: dict[str, Any]) -> str:
    """The text of a message of a user or an assistant. Empty for every other item."""
    if item["type"] != "message" or item["role"] not in ("user", "assistant"):
        return ""
    text = "\n".join(part["text"] for part in item["content"] if isinstance(part.get("text"), str))
    return storable(text[:MAX_SEARCHED])


def storable(text: str) -> str:
    """The text without the characters that PostgreSQL refuses, and without the marks of hits."""
    return text.translate(_NOT_STORED).encode(errors="replace").decode()


def lexemes_of(vector: str) -> list[str]:
    return [_unquoted(found[1]) for found in _QUOTED.finditer(vector)]


def hashed_vector(vector: str, key: bytes) -> str:
    """A tsvector with each lexeme replaced by its hash. The positions stay."""
    return _QUOTED.sub(lambda found: f"'{_hashed(_unquoted(found[1]), key)}'", vector)


def hashed_query(query: str, keys: Sequence[bytes]) -> str:
    """A tsquery with each lexeme replaced by its hashes with all of the keys. Any of these hashes may match."""
    return _QUOTED.sub(lambda found: hashed_word(_unquoted(found[1]), keys), query)


def hashed_word(lexeme: str, keys: Sequence[bytes]) -> str:
    """The tsquery that finds a lexeme, whichever of the keys it was hashed with."""
    return "(" + " | ".join(f"'{_hashed(lexeme, key)}'" for key in keys) + ")"


def excerpt(marked: str) -> str:
    """The part of a text around its first marked hit."""
    before, _, after = marked.partition(HIT_BEGINS) if HIT_BEGINS in marked else ("", "", marked)
    before, after = _plain(before), _plain(after)
    lead = before[-BEFORE_HIT:]
    if len(lead) < len(before):
        lead = "…" + lead.partition(" ")[2]
    rest = EXCERPT - len(lead)
    if len(after) > rest:
        after = (after[:rest].rpartition(" ")[0] or after[:rest]) + "…"
    return (lead + after).strip()


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace(HIT_BEGINS, "").replace(HIT_ENDS, ""))


def _unquoted(lexeme: str) -> str:
    return lexeme.replace("''", "'").replace("\\\\", "\\")


def _hashed(lexeme: str, key: bytes) -> str:
    return urlsafe_b64encode(hmac.digest(key, lexeme.encode(), "sha256")[:HASH_BYTES]).decode()
