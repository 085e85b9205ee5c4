"""PostgreSQL as the stores see it: transactions, each in the name of one tenant. Tenants share the connections fairly,
so that no tenant keeps another from its transactions.
"""

import asyncio
import logging
import math
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

from psycopg import AsyncConnection, DataError, OperationalError
from psycopg.errors import ForeignKeyViolation
from psycopg.rows import DictRow, dict_row
from psycopg.sql import Composed
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from api.state.postgres.fair_shares import Shares
from cluster.errors import Conflict, InvalidRequest, NotFound, StateUnavailable

logger = logging.getLogger("baton.state")

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0xBA7011
"""The key of the advisory lock in PostgreSQL that lets one process migrate while all other processes wait."""
EVERY_TENANT = "*"
"""The tenant name of background jobs. Their transactions see the rows of all tenants."""
CONNECTION_TIMEOUT_S = 2.0
"""How long a request waits for a connection before it is refused, in seconds. Shorter refuses more requests of a busy
replica; longer keeps clients waiting that will be refused anyway.
"""
FIRST_CONNECTION_TIMEOUT_S = 10.0
"""How long the start of a replica waits for the first connection of a pool, in seconds. No client waits for it, and a
machine on which engines start is slow. Shorter warns of a server that is only slow; longer finds out later that a
server takes no more connections.
"""
PROBE_TIMEOUT_S = 5.0
"""How long the probe waits for PostgreSQL, in seconds. Shorter takes a slow server for a lost one; longer finds a loss
later.
"""
TRANSACTION_TIMEOUT_S = 7.0
"""How long a transaction may take, in seconds, with its wait for a connection. PostgreSQL itself ends a statement after
5 s, so this bound is for a server or a network that hangs. Longer keeps clients waiting for an answer that never comes;
shorter ends transactions that a busy server has accepted.
"""
CUT_MARGIN_S = 1.0
"""How long after its connection was cut a transaction is cancelled if it has not ended, in seconds. Shorter cancels a
transaction that is about to end; longer keeps its client waiting.
"""
MIGRATION_TIMEOUT_S = 600.0
"""How long all migrations together may take, in seconds. Shorter fails on tables with many rows; longer finds a hanging
migration later.
"""
RECONNECT_TIMEOUT_S = 3.0
"""How long the pool tries to reconnect before it gives up until the next request for a connection, in seconds. The
pauses between tries grow. Longer finds a server later that is back; shorter connects more often to a server that is
away.
"""
CONNECT_TIMEOUT_S = 5
"""How long a new connection to PostgreSQL may take, in whole seconds. Shorter fails on a busy server; longer finds a
hanging server later.
"""
UNACKNOWLEDGED_MS = 10_000
"""How long data that was sent to PostgreSQL may stay without an acknowledgement, in milliseconds. Then the kernel ends
the connection. Shorter ends connections when packets are lost; longer finds a machine that vanished later.
"""
RETRY_AFTER_S = 2.0
"""The Retry-After of a request that PostgreSQL could not serve, in seconds. Shorter brings more requests during an
outage; longer keeps clients away after it.
"""
LARGEST_SHARE = 2
"""The divisor of the connections that gives the most one tenant may hold at a time. A smaller divisor lets a tenant run
more requests at once; a larger one leaves more connections to other tenants.
"""
NEARLY_FULL_BYTES = 256 << 20
"""The distance to its quota from which a tenant's writes run one after another, in bytes, so that no two writes take
the last room. It exceeds what all connections of a replica can store at once. Less could let a tenant exceed its quota;
more slows a tenant down earlier.
"""
SETTINGS = "-c statement_timeout=5000 -c lock_timeout=2000 -c idle_in_transaction_session_timeout=10000"
"""Limits that PostgreSQL keeps for each connection, in ms: of a statement, of a wait for a lock, and of a transaction
in which nothing happens. Longer ones keep a connection of the pool busy behind one slow request; shorter ones fail
requests on a slow disk.
"""

_ENTER: LiteralString = "SELECT baton_enter(%(tenant)s, %(lock)s, %(adds)s, %(most)s, %(near)s) AS standing"

Transaction = AsyncConnection[DictRow]
Query = LiteralString | Composed
Row = DictRow
"""The columns of a row, by name."""

GONE = frozenset(
    {
        "items_tenant_id_conversation_id_fkey",
        "items_tenant_id_response_id_fkey",
        "responses_tenant_id_conversation_id_fkey",
        "response_events_tenant_id_response_id_fkey",
        "feedback_tenant_id_response_id_fkey",
        "feedback_tenant_id_chat_completion_id_fkey",
    }
)
"""Foreign keys to rows that clients or the retention may delete at any moment."""


class Database:
    def __init__(self, url: str, max_connections: int, quota: Callable[[str], int | None] = lambda _: None) -> None:
        """`quota`: the bytes that a tenant may store; None for no bound."""
        self._shares = Shares(max_connections, max(1, max_connections // LARGEST_SHARE))
        self._quota = quota
        self._pool: AsyncConnectionPool[Transaction] = AsyncConnectionPool(
            url,
            open=False,
            min_size=1,
            max_size=max_connections,
            timeout=CONNECTION_TIMEOUT_S,
            reconnect_timeout=RECONNECT_TIMEOUT_S,
            kwargs={
                "row_factory": dict_row,
                "options": SETTINGS,
                "connect_timeout": CONNECT_TIMEOUT_S,
                "tcp_user_timeout": UNACKNOWLEDGED_MS,
            },
        )

        self._url = url
        self._probing: AsyncConnection | None = None
        self.reachable_since = math.inf
        """The event loop's time since which no probe has failed. `math.inf` while PostgreSQL is away."""

    async def open(self) -> None:
        """Start the pool. Connections are made in the background; this waits for none of them."""
        await self._pool.open()

    async def connected(self) -> None:
        """Returns once the pool has a connection, for the first transactions after the start. Raises StateUnavailable
        if it gets none in FIRST_CONNECTION_TIMEOUT_S.
        """
        try:
            await self._pool.putconn(await self._pool.getconn(FIRST_CONNECTION_TIMEOUT_S))
        except PoolTimeout as error:
            raise _away(error) from error

    async def close(self) -> None:
        await self._pool.close()
        if self._probing is not None:
            await self._probing.close()

    async def probe(self) -> None:
        """Check that PostgreSQL has not been lost since the last probe. The probe has a connection of its own, which
        breaks when the server is lost, and which no tenant keeps busy. A failed transaction would prove less: it may
        have found no free connection, or no free lock. Raises StateUnavailable.
        """
        try:
            if self._probing is None:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    self._probing = await AsyncConnection.connect(self._url, autocommit=True)
            with _cut(self._probing, _now() + PROBE_TIMEOUT_S):
                await self._probing.execute("SELECT 1")
            self.reachable_since = min(self.reachable_since, _now())
        except (TimeoutError, OperationalError) as error:
            self.reachable_since = math.inf
            if self._probing is not None:
                await self._probing.close()
                self._probing = None
            raise _away(error) from error

    async def drop_broken(self) -> None:
        """Replace all connections after the server was lost, before a transaction gets one of them. The pool does not
        check the old connections: such a check cannot be left, and a broken connection may never answer it.
        """
        await self._pool.drain()

    @asynccontextmanager
    async def transaction(
        self, tenant: str, timeout_s: float = TRANSACTION_TIMEOUT_S, *, adds: int = 0, lock: int | None = None
    ) -> AsyncIterator[Transaction]:
        """A transaction that sees the rows of this tenant alone. It is committed at the end and rolled back by an
        exception. `adds`: the bytes that the client asks to store. `lock`: a number that at most one transaction holds
        at a time.

        Raises:
            InvalidRequest: a text has NUL characters or halves of surrogate pairs, which PostgreSQL does not store; or
                the quota of the tenant has no room for `adds`.
            NotFound: the row that a new row refers to has just been deleted.
            Conflict: the tenant is being erased.
            StateUnavailable: PostgreSQL is away, or too slow.
        """
        try:
            until = _now() + timeout_s
            async with asyncio.timeout_at(until + CUT_MARGIN_S), self._connected(tenant, until) as connection:
                if tenant == EVERY_TENANT:
                    await connection.execute("SELECT set_config('app.tenant_id', %s, true)", [tenant])
                else:
                    await self._enter(connection, tenant, adds, lock)
                yield connection
        except (DataError, UnicodeEncodeError) as error:
            if getattr(error, "sqlstate", None) is not None:
                raise  # PostgreSQL refused a value that Baton made: a bug of Baton, not of the request
            raise InvalidRequest(f"a text of the request cannot be stored: {error}", None, "invalid_value") from error
        except ForeignKeyViolation as error:
            if error.diag.constraint_name not in GONE:
                raise
            raise NotFound("the object that the request refers to has just been deleted", None, "not_found") from error
        except (PoolTimeout, TimeoutError, OperationalError) as error:
            raise _away(error) from error

    @asynccontextmanager
    async def _connected(self, tenant: str, until: float) -> AsyncIterator[Transaction]:
        """A connection, which is cut at `until`, even in the middle of the commit. Raises TimeoutError, PoolTimeout if
        no connection is free in CONNECTION_TIMEOUT_S.
        """
        async with AsyncExitStack() as held:
            async with asyncio.timeout(CONNECTION_TIMEOUT_S):
                await held.enter_async_context(self._shares.one(tenant))
            connection = await self._pool.getconn()
            held.push_async_callback(self._pool.putconn, connection)
            held.enter_context(_cut(connection, until))
            yield await held.enter_async_context(connection)

    async def _enter(self, connection: Transaction, tenant: str, adds: int, lock: int | None) -> None:
        most = self._quota(tenant) if adds else None
        row = await fetch_one(
            connection, _ENTER, tenant=tenant, lock=lock, adds=adds, most=most, near=NEARLY_FULL_BYTES
        )
        assert row is not None
        if row["standing"] == "erased":
            raise Conflict("the data of this tenant is being erased", None, "tenant_erased")
        if row["standing"] == "full":
            raise InvalidRequest(
                f"the request would store more than the {most} bytes that this tenant may store: delete something "
                "first",
                None,
                "storage_quota_exceeded",
            )

    async def migrate(self) -> None:
        """Bring the tables up to date. Of several processes that call it, one migrates and the rest wait.

        Raises:
            StateUnavailable: PostgreSQL is away.
            RuntimeError: a newer version of Baton has written this database.
        """
        known = {int(file.name.partition("_")[0]): file for file in sorted(MIGRATIONS.glob("*.sql"))}
        async with self.transaction(EVERY_TENANT, MIGRATION_TIMEOUT_S) as transaction:
            await transaction.execute("SET LOCAL statement_timeout = 0")
            await transaction.execute("SET LOCAL lock_timeout = 0")
            await transaction.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
            await transaction.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations ("
                "version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
            )
            done = await (await transaction.execute("SELECT version FROM schema_migrations")).fetchall()
            versions = {row["version"] for row in done}
            if unknown := versions - known.keys():
                raise RuntimeError(
                    f"a newer version of Baton has written this database (its schema has version {max(unknown)}, "
                    f"this one knows {max(known)}): use that version, or another database"
                )
            for version, file in known.items():
                if version not in versions:
                    await transaction.execute(file.read_text())
                    await transaction.execute(
                        "INSERT INTO schema_migrations (version, name) VALUES (%s, %s)", [version, file.stem]
                    )


def _now() -> float:
    return asyncio.get_running_loop().time()


@contextmanager
def _cut(connection: AsyncConnection[Any], until: float) -> Iterator[None]:
    """Shut the socket of the connection down at `until`, unless the block ends before. Cancelling is not enough:
    psycopg asks the server to cancel the statement and waits for the answer, which a server that hangs never sends.
    """
    cutting = asyncio.get_running_loop().call_at(until, _shut_down, connection)
    try:
        yield
    finally:
        cutting.cancel()


def _shut_down(connection: AsyncConnection[Any]) -> None:
    with suppress(OSError, OperationalError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def _away(error: Exception) -> StateUnavailable:
    logger.warning("PostgreSQL is away or busy: %s", str(error).strip() or type(error).__name__)
    return StateUnavailable("the stored conversations cannot be reached now", RETRY_AFTER_S)


async def fetch_all(transaction: Transaction, query: Query, **values: Any) -> list[DictRow]:
    return await (await transaction.execute(query, values)).fetchall()


async def fetch_one(transaction: Transaction, query: Query, **values: Any) -> DictRow | None:
    return await (await transaction.execute(query, values)).fetchone()
