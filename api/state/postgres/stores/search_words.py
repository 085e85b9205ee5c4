"""What is searched of items, and how the index knows it: PostgreSQL's lexemes, each as a keyed hash. Pure.

Whoever has the disk sees which messages share a word and how often, and no word.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

MAX_SEARCHED = 20_000
"""Characters of a message."""
HASH_BYTES = 6
"""Eight characters. Of a million words, a few thousand at most share theirs with another one."""
HIT_BEGINS, HIT_ENDS = "\x02", "\x03"
"""Around the words of a text that a query has found."""
EXCERPT, BEFORE_HIT = 160, 60
"""Characters."""

_QUOTED = re.compile(r"'((?:[^']|'')*)'")
"""A lexeme, as PostgreSQL writes vectors and queries."""
_NOT_STORED = str.maketrans(dict.fromkeys(map(chr, (0, 2, 3)), " "))


def text_of(item: dict[str, Any]) -> str:
    """Empty for all but the messages of users and assistants."""
    if item["type"] != "message" or item["role"] not in ("user", "assistant"):
        return ""
    text = "\n".join(part["text"] for part in item["content"] if isinstance(part.get("text"), str))
    return storable(text[:MAX_SEARCHED])


def storable(text: str) -> str:
    """Without what PostgreSQL does not take, and without marks of ours."""
    return text.translate(_NOT_STORED).encode(errors="replace").decode()


def lexemes_of(vector: str) -> list[str]:
    return [_unquoted(found[1]) for found in _QUOTED.finditer(vector)]


def hashed_vector(vector: str, key: bytes) -> str:
    """A tsvector with its positions; each lexeme becomes its hash."""
    return _QUOTED.sub(lambda found: f"'{_hashed(_unquoted(found[1]), key)}'", vector)


def hashed_query(query: str, keys: Sequence[bytes]) -> str:
    """A tsquery; each lexeme becomes its hash by any of the keys."""
    return _QUOTED.sub(lambda found: hashed_word(_unquoted(found[1]), keys), query)


def hashed_word(lexeme: str, keys: Sequence[bytes]) -> str:
    """The tsquery that finds it."""
    return "(" + " | ".join(f"'{_hashed(lexeme, key)}'" for key in keys) + ")"


def excerpt(marked: str) -> str:
    """Around the first hit of a text whose hits are marked."""
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
