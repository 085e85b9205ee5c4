"""The index of what was said, written with what was said."""

from itertools import accumulate
from typing import Any

from api.state.database import Transaction, fetch_all
from api.state.queries import queries
from api.state.sealing import TenantKey
from api.state.words import hashed_vector, text_of

INDEXED_AT_ONCE = 4_000
"""Characters: more would hold up the turn, and is indexed a moment later."""

_SQL = queries("words.sql")


async def add_words(transaction: Transaction, key: TenantKey, items: list[dict[str, Any]]) -> None:
    """Of items that have just been appended to a conversation."""
    texts = {item["id"]: text for item in items if (text := text_of(item))}
    if not texts:
        return
    length = accumulate(map(len, texts.values()))
    now = {item: texts[item] for item, so_far in zip(texts, length, strict=True) if so_far <= INDEXED_AT_ONCE}
    found = dict(zip(now, await vectors(transaction, key, list(now.values())), strict=True))
    values = {"tenant": key.tenant, "items": list(texts), "vectors": [found.get(item) for item in texts]}
    await transaction.execute(_SQL["add"], values)


async def vectors(transaction: Transaction, key: TenantKey, texts: list[str]) -> list[str | None]:
    """As the index has them; None where nothing is searched."""
    rows = await fetch_all(transaction, _SQL["lexemes"], texts=texts) if texts else []
    hashing = words_key(key)
    return [None if row["vector"] is None else hashed_vector(row["vector"], hashing) for row in rows]


def words_key(key: TenantKey) -> bytes:
    return key.derived("words")
