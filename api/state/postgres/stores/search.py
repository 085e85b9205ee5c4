"""Search by text: PostgreSQL finds and ranks, over words that it knows by their hashes."""

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from psycopg import OperationalError
from psycopg.errors import InternalError_, QueryCanceled
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from api.state.encryption.tenant_keys import TenantKey, TenantKeys
from api.state.postgres.database import (
    CONNECTION_TIMEOUT_S,
    EVERY_TENANT,
    RETRY_AFTER_S,
    Database,
    Transaction,
    fetch_all,
    fetch_one,
)
from api.state.postgres.parts import PAGE_BYTES, FoundPart, cursor_to, no_cursor, part_of_rows, place_in
from api.state.postgres.queries import queries
from api.state.postgres.shares import Shares
from api.state.postgres.stores.conversations import Conversation, conversations_of, found_conversation
from api.state.postgres.stores.items import unsealed
from api.state.postgres.stores.search_words import (
    excerpt,
    hashed_query,
    hashed_vector,
    hashed_word,
    lexemes_of,
    storable,
    text_of,
)
from api.wire.pages import Page, Part
from cluster.errors import InvalidRequest, ServingError, StateUnavailable, TooManyRequests

logger = logging.getLogger("baton.state")

MAX_QUERY = 1_000
"""Characters."""
MAX_RELEVANT_WORDS = 50
"""Of what is compared with a conversation: the longest ones, which say the most."""
COMPARED = 2_000
"""Messages of a conversation, the newest, with which a text is compared."""
RANKED = 1_000
"""Messages that match, the newest, among which the best are looked for. More finds what is older, and takes PostgreSQL
longer for common words.
"""
SEARCH_TIMEOUT_MS = 1_500
"""Of each statement of a search. More lets a search of a tenant with much text use PostgreSQL for longer; less answers
fewer of them.
"""
SEARCHES_SHARE = 4
"""One of so many parts of the connections may be searching, and one of a tenant: whatever is searched, the others of it
are left to who reads and writes.
"""
CAUGHT_UP_AT_ONCE, CAUGHT_UP_BYTES = 20, 4 << 20
"""Messages that one transaction of the background job indexes, and bytes of them, but for a single one."""
BATCHES_AT_ONCE = 10

_SQL = queries("words.sql")


class Match(NamedTuple):
    conversation: Conversation
    item: str
    """Its best message."""
    excerpt: str


class Search:
    def __init__(self, database: Database, keys: TenantKeys, language: str, max_connections: int) -> None:
        """`language`: a text search configuration of PostgreSQL; empty where nothing is searched. `max_connections`: of
        the database.
        """
        self._shares = Shares(max(1, max_connections // SEARCHES_SHARE), most_of_one=1)
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
    ) -> FoundPart[Match]:
        """Conversations with a message that matches, the best first, of the newest messages where many match. `query`:
        as people write them for web searches.

        Raises:
            InvalidRequest: of the query or the page; or too much matches.
            NotFound: of the page.
            TooManyRequests: others are being answered, of this tenant or in all.
        """
        if not self._language:
            raise InvalidRequest("conversations cannot be searched here", "query", "unsupported_parameter")
        if len(query) > MAX_QUERY:
            raise InvalidRequest(f"query may have {MAX_QUERY} characters", "query", "string_above_max_length")
        after, place = place_in(page)
        rank = None if place is None else _rank_of(place)
        values: dict[str, Any] = {"after": after, "rank": rank, "end_user": end_user}
        values |= {"metadata": Jsonb(metadata), "limit": page.limit + 1, "max_bytes": PAGE_BYTES, "ranked": RANKED}
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(CONNECTION_TIMEOUT_S):
                    await held.enter_async_context(self._shares.one(tenant))
            except TimeoutError as error:
                raise TooManyRequests("other searches are not answered yet", RETRY_AFTER_S) from error
            try:
                return await self._found(tenant, query, page, values)
            except StateUnavailable as error:
                if isinstance(error.__cause__, QueryCanceled):
                    raise InvalidRequest(
                        "too many messages match: use words that are rarer", "query", "query_too_broad"
                    ) from error
                raise

    async def _found(self, tenant: str, query: str, page: Page, values: dict[str, Any]) -> FoundPart[Match]:
        async with self._database.transaction(tenant) as transaction:
            await transaction.execute(_SQL["limit_time"], {"milliseconds": str(SEARCH_TIMEOUT_MS)})
            asked = await self._asked(transaction, query)
            keys = await self._words_keys(transaction, tenant)
            if asked is None or not asked["has_words"] or not keys:
                return FoundPart(Part([], has_more=False), None)
            words = hashed_query(asked["query"], keys)
            rows = await fetch_all(transaction, _SQL["find"], tenant=tenant, words=words, **values)
            if not rows and values["after"] and values["rank"] is None:
                await found_conversation(transaction, tenant, values["after"])
            shown, has_more = part_of_rows(rows, page.limit)
            found = await conversations_of(transaction, self._keys, tenant, shown)
            items = [_item_of(row) for row in shown]
            best = await unsealed(await self._keys.of_rows(transaction, tenant, items), items)
            marks = {"asked": query, "texts": [text_of(item) for item in best], "language": self._language}
            marked = await fetch_all(transaction, _SQL["marked"], **marks)
        matches = [
            Match(conversation, item["id"], excerpt(row["text"]))
            for conversation, item, row in zip(found, best, marked, strict=True)
        ]
        cursor = cursor_to(found[-1].id, repr(shown[-1]["rank"])) if found else None
        return FoundPart(Part(matches, has_more), cursor)

    async def _asked(self, transaction: Transaction, query: str) -> DictRow | None:
        """Raises InvalidRequest for one that nests more than PostgreSQL's parser does."""
        try:
            return await fetch_one(transaction, _SQL["query"], text=query, language=self._language)
        except InternalError_ as error:
            raise InvalidRequest("the query has too many operators in a row", "query", "invalid_value") from error

    async def relevant(
        self, tenant: str, conversation: str, text: str, limit: int, before_item: str | None = None
    ) -> list[str]:
        """Of the newest messages of a conversation, those that share words with the text, the most relevant first:
        their ids.
        """
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
            return [row["id"] for row in rows]

    async def catch_up(self) -> bool:
        """Index what has been said since, or in another language. True: there may be more."""
        for _ in range(BATCHES_AT_ONCE):
            async with self._database.transaction(EVERY_TENANT) as transaction:
                values = {"limit": CAUGHT_UP_AT_ONCE, "max_bytes": CAUGHT_UP_BYTES}
                rows = await fetch_all(transaction, _SQL["behind"], language=self._language, **values)
                if not rows:
                    return False
                await self._index(transaction, rows)
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
            key = await self._keys.of_version(transaction, row["tenant_id"], row["key_version"])
            (item,) = await unsealed({key.version: key}, [row])
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


def _rank_of(place: str) -> float:
    """Raises InvalidRequest."""
    try:
        rank = float(place)
    except ValueError as error:
        raise no_cursor() from error
    if not 0 <= rank < 1e30:
        raise no_cursor()
    return rank


def _words_key(key: TenantKey) -> bytes:
    return key.derived("words")


def _hashed(vectors: list[str | None], keys: list[bytes | None]) -> list[str | None]:
    return [hashed_vector(vector, key) if vector and key else None for vector, key in zip(vectors, keys, strict=True)]


def _item_of(row: DictRow) -> DictRow:
    """Of a conversation's row, the best message."""
    prefix = "item_"
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}
