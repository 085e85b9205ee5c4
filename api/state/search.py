"""Search by text: PostgreSQL finds and ranks, over words that it knows by their hashes."""

import asyncio
import logging
from typing import NamedTuple

from psycopg import OperationalError
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from api.state.conversations import Conversation, Page, conversations_of, found_conversation
from api.state.database import EVERY_TENANT, Database, Transaction, fetch_all, fetch_one
from api.state.items import Item, unsealed
from api.state.queries import queries
from api.state.sealing import TenantKey, TenantKeys
from api.state.words import excerpt, hashed_query, hashed_vector, hashed_word, lexemes_of, storable, text_of
from cluster.errors import InvalidRequest, ServingError, StateUnavailable

logger = logging.getLogger("baton.state")

MAX_QUERY = 1_000
"""Characters."""
MAX_RELEVANT_WORDS = 50
"""Of what is compared with a conversation: the longest ones, which say the most."""
COMPARED = 2_000
"""Messages of a conversation, the newest, with which a text is compared."""
CAUGHT_UP_AT_ONCE = 20
"""Messages that one transaction of the background job indexes."""
BATCHES_AT_ONCE = 10

_SQL = queries("words.sql")


class Match(NamedTuple):
    conversation: Conversation
    item: str
    """Its best message."""
    excerpt: str


class Search:
    def __init__(self, database: Database, keys: TenantKeys, language: str) -> None:
        """`language`: a text search configuration of PostgreSQL; empty where nothing is searched."""
        self._database = database
        self._keys = keys
        self._language = language

    async def check(self) -> None:
        """Raises ValueError for a language that PostgreSQL does not know."""
        async with self._database.transaction(EVERY_TENANT) as transaction:
            known = {row["cfgname"] for row in await fetch_all(transaction, _SQL["languages"])}
        if self._language and self._language not in known:
            raise ValueError(
                f"state.search_language: PostgreSQL does not know {self._language!r}, but {', '.join(sorted(known))}"
            )

    async def find(
        self, tenant: str, query: str, page: Page, end_user: str | None, metadata: dict[str, str]
    ) -> list[Match]:
        """Conversations with a message that matches, the best first; one more than the page takes, where there are
        more. `query`: as people write them for web searches. Raises InvalidRequest, and NotFound for the page.
        """
        if not self._language:
            raise InvalidRequest("conversations cannot be searched here", "query", "unsupported_parameter")
        if len(query) > MAX_QUERY:
            raise InvalidRequest(f"query may have {MAX_QUERY} characters", "query", "string_above_max_length")
        async with self._database.transaction(tenant) as transaction:
            asked = await fetch_one(transaction, _SQL["query"], text=query, language=self._language)
            keys = await self._words_keys(transaction, tenant)
            if asked is None or not asked["has_words"] or not keys:
                return []
            rows = await fetch_all(
                transaction,
                _SQL["find"],
                tenant=tenant,
                words=hashed_query(asked["query"], keys),
                end_user=end_user,
                metadata=Jsonb(metadata),
                after=page.after,
                limit=page.limit + 1,
            )
            if not rows and page.after:
                await found_conversation(transaction, tenant, page.after)
            found = await conversations_of(transaction, self._keys, tenant, rows)
            best = await unsealed(transaction, self._keys, tenant, [_item_of(row) for row in rows])
            texts = [text_of(item) for item in best]
            values = {"asked": query, "texts": texts, "language": self._language}
            marked = await fetch_all(transaction, _SQL["marked"], **values)
        return [
            Match(conversation, item["id"], excerpt(row["text"]))
            for conversation, item, row in zip(found, best, marked, strict=True)
        ]

    async def relevant(
        self, tenant: str, conversation: str, text: str, limit: int, before_item: str | None = None
    ) -> list[Item]:
        """Of the newest messages of a conversation, those that share words with the text, the most relevant first."""
        async with self._database.transaction(tenant) as transaction:
            (vector,) = await self._lexemes(transaction, [storable(text[:MAX_QUERY])])
            keys = await self._words_keys(transaction, tenant)
            if not vector or not keys:
                return []
            asked = sorted(lexemes_of(vector), key=len, reverse=True)
            rows = await fetch_all(
                transaction,
                _SQL["relevant"],
                tenant=tenant,
                conversation=conversation,
                words=[hashed_word(lexeme, keys) for lexeme in asked[:MAX_RELEVANT_WORDS]],
                before=before_item,
                among=COMPARED,
                limit=limit,
            )
            return await unsealed(transaction, self._keys, tenant, rows)

    async def catch_up(self) -> bool:
        """Index what has been said since, or in another language. True: there may be more."""
        for _ in range(BATCHES_AT_ONCE):
            async with self._database.transaction(EVERY_TENANT) as transaction:
                rows = await fetch_all(transaction, _SQL["behind"], language=self._language, limit=CAUGHT_UP_AT_ONCE)
                if rows:
                    await self._index(transaction, rows)
            if len(rows) < CAUGHT_UP_AT_ONCE:
                return False
        return True

    async def _index(self, transaction: Transaction, rows: list[DictRow]) -> None:
        """One that cannot be is passed over, and not tried again."""
        try:
            async with transaction.transaction():
                await self._store(transaction, rows, await self._vectors(transaction, rows))
        except (StateUnavailable, OperationalError):
            raise
        except Exception as error:
            if len(rows) > 1:
                for row in rows:
                    await self._index(transaction, [row])
            else:
                logger.warning("%s cannot be searched: %s", rows[0]["id"], error)
                await self._store(transaction, rows, [None])

    async def _store(self, transaction: Transaction, rows: list[DictRow], vectors: list[str | None]) -> None:
        values = {
            "language": self._language,
            "tenants": [row["tenant_id"] for row in rows],
            "items": [row["id"] for row in rows],
            "vectors": vectors,
        }
        await transaction.execute(_SQL["catch_up"], values)

    async def _vectors(self, transaction: Transaction, rows: list[DictRow]) -> list[str | None]:
        """Of messages of any tenants; None for those that nobody can read any more, or search."""
        readable = [await self._readable(transaction, row) for row in rows]
        lexemes = await self._lexemes(transaction, [text for text, _ in readable])
        return await asyncio.to_thread(_hashed, lexemes, [key for _, key in readable])

    async def _readable(self, transaction: Transaction, row: DictRow) -> tuple[str, bytes | None]:
        """Its text, and what its words are hashed with."""
        try:
            (item,) = await unsealed(transaction, self._keys, row["tenant_id"], [row])
            key = await self._keys.of_version(transaction, row["tenant_id"], row["key_version"])
        except StateUnavailable:
            raise
        except ServingError as error:
            logger.warning("%s cannot be searched: %s", row["id"], error)
            return "", None
        return text_of(item), _words_key(key)

    async def _lexemes(self, transaction: Transaction, texts: list[str]) -> list[str | None]:
        """As PostgreSQL writes a tsvector; None where nothing is searched."""
        rows = await fetch_all(transaction, _SQL["lexemes"], texts=texts, language=self._language)
        return [row["vector"] for row in rows]

    async def _words_keys(self, transaction: Transaction, tenant: str) -> list[bytes]:
        return [_words_key(key) for key in await self._keys.all(transaction, tenant)]


def _words_key(key: TenantKey) -> bytes:
    return key.derived("words")


def _hashed(vectors: list[str | None], keys: list[bytes | None]) -> list[str | None]:
    return [hashed_vector(vector, key) if vector and key else None for vector, key in zip(vectors, keys, strict=True)]


def _item_of(row: DictRow) -> DictRow:
    """Of a conversation's row, the best message."""
    prefix = "item_"
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}
