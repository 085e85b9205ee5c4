"""Search by text. PostgreSQL finds and ranks messages by hashed words (search_words.py)."""

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from psycopg import OperationalError
from psycopg.errors import InternalError_, QueryCanceled
from psycopg.types.json import Jsonb

from api.state.encryption.tenant_keys import TenantKey
from api.state.postgres.database import CONNECTION_TIMEOUT_S, EVERY_TENANT, RETRY_AFTER_S, Row
from api.state.postgres.fair_shares import Shares
from api.state.postgres.list_pages import PAGE_BYTES, FoundPart, cursor_to, no_cursor, part_of_rows, place_in
from api.state.postgres.queries import queries
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
from api.state.postgres.tenant_transaction import TenantDatabase, TenantTransaction
from api.wire.pages import Page, Part
from cluster.errors import InvalidRequest, ServingError, StateUnavailable, TooManyRequests

logger = logging.getLogger("baton.state")

MAX_QUERY = 1_000
"""Characters of a query. More takes PostgreSQL longer to parse; fewer refuses long queries."""
MAX_RELEVANT_WORDS = 50
"""Words of a text that are compared with a conversation: the longest ones, which tell messages apart best. More takes
PostgreSQL longer; fewer finds less.
"""
COMPARED = 2_000
"""Newest messages of a conversation that a text is compared with. More finds older messages; fewer is quicker."""
RANKED = 1_000
"""Newest matching messages that are ranked. More finds older messages; fewer is quicker for common words."""
SEARCH_TIMEOUT_MS = 1_500
"""How long each statement of a search may take, in milliseconds. More lets the search of a tenant with much text use
PostgreSQL for longer; less answers fewer searches.
"""
SEARCHES_SHARE = 4
"""The divisor of the connections that gives the searches of a replica at a time; a tenant may run one of them. A
smaller divisor answers more searches at once; a larger one leaves more connections to reads and writes.
"""
CAUGHT_UP_AT_ONCE, CAUGHT_UP_BYTES = 20, 4 << 20
"""The messages that one transaction of the background job indexes, and their bytes unless a single message is larger.
More is faster; fewer locks the rows for less time.
"""
BATCHES_AT_ONCE = 10
"""Transactions of one run of the background job. More is faster; fewer leaves PostgreSQL to requests more often."""

_SQL = queries("search.sql")


class Match(NamedTuple):
    """A conversation that a query has found."""

    conversation: Conversation
    item: str
    """The id of the conversation's best message."""
    excerpt: str


class Search:
    def __init__(self, database: TenantDatabase, language: str, max_connections: int) -> None:
        """`language`: a text search configuration of PostgreSQL; empty to index nothing. `max_connections`: the
        connections of the database.
        """
        self._shares = Shares(max(1, max_connections // SEARCHES_SHARE), most_of_one=1)
        self._database = database
        self._language = language

    async def check(self) -> None:
        """Raises ValueError for a language that PostgreSQL does not know."""
        async with self._database.transaction(EVERY_TENANT) as transaction:
            known = {row["cfgname"] for row in await transaction.fetch_all(_SQL["languages"])}
        if self._language and self._language not in known:
            raise ValueError(
                f"state.search_language: PostgreSQL does not know {self._language!r}; it knows "
                f"{', '.join(sorted(known))}"
            )

    async def find(
        self, tenant: str, query: str, page: Page, end_user: str | None, metadata: dict[str, str]
    ) -> FoundPart[Match]:
        """Conversations with a message that matches, the best first. Only the newest RANKED matching messages are
        ranked. `query`: in the syntax of web searches.

        Raises:
            InvalidRequest: the query or the page is wrong, or too many messages match.
            NotFound: the page begins after a conversation that is gone.
            TooManyRequests: another search of this tenant, or too many searches of all tenants, are running.
        """
        if not self._language:
            raise InvalidRequest(
                "this server does not search conversations: its config has no state.search_language",
                "query",
                "unsupported_parameter",
            )
        if len(query) > MAX_QUERY:
            raise InvalidRequest(f"query may have at most {MAX_QUERY} characters", "query", "string_above_max_length")
        after, place = place_in(page)
        rank = None if place is None else _rank_of(place)
        values: dict[str, Any] = {"after": after, "rank": rank, "end_user": end_user}
        values |= {"metadata": Jsonb(metadata), "limit": page.limit + 1, "max_bytes": PAGE_BYTES, "ranked": RANKED}
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(CONNECTION_TIMEOUT_S):
                    await held.enter_async_context(self._shares.one(tenant))
            except TimeoutError as error:
                raise TooManyRequests("other searches are still running", RETRY_AFTER_S) from error
            try:
                return await self._found(tenant, query, page, values)
            except StateUnavailable as error:
                if isinstance(error.__cause__, QueryCanceled):
                    raise InvalidRequest(
                        "too many messages match: use rarer words", "query", "query_too_broad"
                    ) from error
                raise

    async def _found(self, tenant: str, query: str, page: Page, values: dict[str, Any]) -> FoundPart[Match]:
        async with self._database.transaction(tenant) as transaction:
            await transaction.execute(_SQL["limit_time"], milliseconds=str(SEARCH_TIMEOUT_MS))
            parsed = await self._parsed(transaction, query)
            keys = await _words_keys(transaction)
            if parsed is None or not parsed["has_words"] or not keys:
                return FoundPart(Part([], has_more=False), None)
            words = hashed_query(parsed["query"], keys)
            rows = await transaction.fetch_all(_SQL["find"], words=words, **values)
            if not rows and values["after"] and values["rank"] is None:
                await found_conversation(transaction, values["after"])
            shown, has_more = part_of_rows(rows, page.limit)
            found = await conversations_of(transaction, shown)
            items = [_item_of(row) for row in shown]
            best = await unsealed(await transaction.keys_of(items), items)
            texts = [text_of(item) for item in best]
            marked = await transaction.fetch_all(_SQL["marked"], text=query, texts=texts, language=self._language)
        matches = [
            Match(conversation, item["id"], excerpt(row["text"]))
            for conversation, item, row in zip(found, best, marked, strict=True)
        ]
        cursor = cursor_to(found[-1].id, repr(shown[-1]["rank"])) if found else None
        return FoundPart(Part(matches, has_more), cursor)

    async def _parsed(self, transaction: TenantTransaction, query: str) -> Row | None:
        """Raises InvalidRequest for a query that nests deeper than PostgreSQL's parser allows."""
        try:
            return await transaction.fetch_one(_SQL["query"], text=query, language=self._language)
        except InternalError_ as error:
            raise InvalidRequest("the query has too many operators in a row", "query", "invalid_value") from error

    async def relevant(
        self, tenant: str, conversation: str, text: str, limit: int, before_item: str | None = None
    ) -> list[str]:
        """The ids of the messages that share words with the text, the most relevant first. Only the newest COMPARED
        messages of the conversation are compared, and only those before `before_item` if it is given.
        """
        async with self._database.transaction(tenant) as transaction:
            (vector,) = await self._lexemes(transaction, [storable(text[:MAX_QUERY])])
            keys = await _words_keys(transaction)
            if not vector or not keys:
                return []
            longest_first = sorted(lexemes_of(vector), key=len, reverse=True)
            rows = await transaction.fetch_all(
                _SQL["relevant"],
                conversation=conversation,
                words=[hashed_word(lexeme, keys) for lexeme in longest_first[:MAX_RELEVANT_WORDS]],
                before=before_item,
                among=COMPARED,
                limit=limit,
            )
            return [row["id"] for row in rows]

    async def catch_up(self) -> bool:
        """Index some of the messages that are not indexed in the current language. True if there may be more."""
        for _ in range(BATCHES_AT_ONCE):
            async with self._database.transaction(EVERY_TENANT) as transaction:
                values = {"limit": CAUGHT_UP_AT_ONCE, "max_bytes": CAUGHT_UP_BYTES}
                rows = await transaction.fetch_all(_SQL["behind"], language=self._language, **values)
                if not rows:
                    return False
                await self._index(transaction, rows)
        return True

    async def _index(self, transaction: TenantTransaction, rows: list[Row]) -> None:
        """Index these messages. A message that fails is recorded as indexed without words, and not tried again."""
        try:
            async with transaction.connection.transaction():
                await self._store(transaction, rows, await self._vectors(transaction, rows))
        except (StateUnavailable, OperationalError):
            raise
        except Exception as error:
            if len(rows) > 1:
                for row in rows:
                    await self._index(transaction, [row])
            else:
                logger.warning("item %s cannot be searched: %s", rows[0]["id"], error)
                await self._store(transaction, rows, [None])

    async def _store(self, transaction: TenantTransaction, rows: list[Row], vectors: list[str | None]) -> None:
        await transaction.execute(
            _SQL["catch_up"],
            language=self._language,
            tenants=[row["tenant_id"] for row in rows],
            items=[row["id"] for row in rows],
            vectors=vectors,
        )

    async def _vectors(self, transaction: TenantTransaction, rows: list[Row]) -> list[str | None]:
        """The hashed words of messages of any tenants. None for a message that is unreadable or not indexed."""
        readable = [await _readable(transaction.of(row["tenant_id"]), row) for row in rows]
        lexemes = await self._lexemes(transaction, [text for text, _ in readable])
        return await asyncio.to_thread(_hashed, lexemes, [key for _, key in readable])

    async def _lexemes(self, transaction: TenantTransaction, texts: list[str]) -> list[str | None]:
        """The words of each text in PostgreSQL's format of a tsvector. None if nothing is indexed."""
        rows = await transaction.fetch_all(_SQL["lexemes"], texts=texts, language=self._language)
        return [row["vector"] for row in rows]


async def _readable(transaction: TenantTransaction, row: Row) -> tuple[str, bytes | None]:
    """The text of an item, and the key that its words are hashed with. No text and no key if it cannot be read."""
    try:
        key = await transaction.key(row["key_version"])
        (item,) = await unsealed({key.version: key}, [row])
    except StateUnavailable:
        raise
    except ServingError as error:
        logger.warning("item %s cannot be searched: %s", row["id"], error)
        return "", None
    return text_of(item), _words_key(key)


async def _words_keys(transaction: TenantTransaction) -> list[bytes]:
    return [_words_key(key) for key in await transaction.all_keys()]


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


def _item_of(row: Row) -> Row:
    """The columns of the best message in the row of a conversation."""
    prefix = "item_"
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}
