"""The state of an ingress replica, from start to close. PostgreSQL has the conversations: it is started if the config
has no URL of it, migrated, and waited for while it is away. Redis is started in the same way; Baton goes on without
it.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from api.state.administration import Administration
from api.state.encryption.master_keys import master_key
from api.state.encryption.tenant_keys import TenantKeys
from api.state.event_streams.event_log import LogSpace
from api.state.event_streams.live_tails import LiveTails
from api.state.postgres.accounts.account_stores import AccountStores
from api.state.postgres.accounts.known_accounts import KnownAccounts
from api.state.postgres.database import EVERY_TENANT, RETRY_AFTER_S, Database
from api.state.postgres.ledger.ledger_store import LedgerStore
from api.state.postgres.tenant_transaction import TenantDatabase
from api.state.redis.client import RedisClient
from api.state.redis.idempotency_keys import IdempotencyKeys
from api.state.redis.read_cache import ReadCache
from api.state.stores import Stores, stores_in
from cluster.config.environment import DATABASE_URL_VARIABLE, LIMITS_REDIS_URL_VARIABLE, REDIS_URL_VARIABLE
from cluster.config.state import StateConfig
from cluster.ending import end_tasks
from cluster.errors import ServingError, StateUnavailable
from cluster.messages.operations import StoreStatus
from cluster.repository import REPO_ROOT
from cluster.services.postgres import POSTGRES_FOLDER, LocalPostgres
from cluster.services.redis import KEEPING, LIMITS_REDIS_FOLDER, REDIS_FOLDER, LocalRedis

logger = logging.getLogger("baton.state")

LOOK_INTERVAL_S = 1.0
"""The time between two looks whether PostgreSQL and Redis run and can be reached, in seconds. Shorter costs more CPU;
longer finds a loss later.
"""
MAX_LOOK_INTERVAL_S = 30.0
"""The longest time between two tries of a job that fails, in seconds. Shorter logs more errors during an outage; longer
finds its end later.
"""
RETENTION_INTERVAL_S = 300.0
"""The time between two runs of the retention, in seconds. Shorter costs PostgreSQL more; longer deletes later."""
MAX_LOG_BYTES = 512 << 20
"""Bytes that the event logs of a replica may take; beyond it the response with the largest log is ended. Less ends long
answers sooner while many run; more takes memory that the replica needs for requests.
"""


class ChatState:
    def __init__(self, config: StateConfig, *, serves: bool = False, publishes_usage: bool = False) -> None:
        """`serves`: whether requests are served with it. Then credentials are looked up and usage is recorded, each on
        a connection of its own. `publishes_usage`: as in `LedgerStore`.

        Raises ValueError for an invalid master key or URL of Redis, OSError if the file of the master key cannot be
        read or written.
        """
        self._config = config
        folder = REPO_ROOT / config.data_dir
        # An empty variable counts as one that is not set
        self._url = os.environ.get(DATABASE_URL_VARIABLE) or config.database_url
        self.local = None if self._url else LocalPostgres(folder / POSTGRES_FOLDER)
        """The PostgreSQL that Baton runs itself. None if the config has a URL."""
        self._keys = TenantKeys(master_key(config.master_key, folder))
        self._database: Database | None = None
        self._writing: Database | None = None
        """The same database on a connection that requests cannot keep busy, so that generation claims are renewed under
        any load.
        """
        self._serves = serves
        self._publishes_usage = publishes_usage
        self._checking: Database | None = None
        """The same database on a connection on which nothing but credentials is looked up."""
        self._recording: Database | None = None
        """The same database on a connection on which nothing but usage is written."""
        self.known_accounts = KnownAccounts(self._checked_in)
        self._stores: Stores | None = None
        self._unreadable: str | None = None
        """Why the stored conversations cannot be read although PostgreSQL can be reached. None if they can be read."""
        self._is_reached = False
        """Whether the last look has reached PostgreSQL."""
        self._is_ready = asyncio.Event()
        """The stores have been reached once."""
        self._jobs: list[asyncio.Task[None]] = []

        self.log_space = LogSpace(MAX_LOG_BYTES, config.max_response_bytes)
        """The memory for the event logs of running responses."""
        self.redis = RedisClient()
        self.limits_redis = RedisClient()
        """Counts limits and budgets. The embedded one is a server of its own, so that no tenant has its limits
        forgotten by storing much.
        """
        self.hashed = self._keys.hashed
        """A keyed hash of texts from clients."""
        self.live_tails = LiveTails(self.redis)
        self.idempotency_keys = IdempotencyKeys(self.redis, self.hashed)
        self.cache = ReadCache(self.redis, self._keys, config.cache_s)
        redis_url = os.environ.get(REDIS_URL_VARIABLE) or config.redis_url
        limits_url = os.environ.get(LIMITS_REDIS_URL_VARIABLE) or config.limits_redis_url or redis_url
        self._local_redis: list[tuple[RedisClient, LocalRedis]] = []
        """The servers that Baton runs itself, each with the client that uses it."""
        if redis_url:
            self.redis.reach(redis_url)
        else:
            self._local_redis.append((self.redis, LocalRedis(folder / REDIS_FOLDER)))
        if limits_url:
            self.limits_redis.reach(limits_url)
        else:
            self._local_redis.append((self.limits_redis, LocalRedis(folder / LIMITS_REDIS_FOLDER, KEEPING)))

    def start(self) -> None:
        """Start the background jobs, which make the stores ready. Requests without a conversation need not wait for
        it.
        """
        jobs = (
            (self._tend, LOOK_INTERVAL_S),
            (self._delete_old, RETENTION_INTERVAL_S),
            (self._index, LOOK_INTERVAL_S),
            (self.look_for_redis, LOOK_INTERVAL_S),
        )
        self._jobs = [asyncio.create_task(_repeat(job, interval_s)) for job, interval_s in jobs]

    async def reached(self, within_s: float | None = None) -> None:
        """Returns when PostgreSQL has been reached once, or after this time if there is one."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_ready.wait(), within_s)

    @property
    def stores(self) -> Stores:
        """Raises StateUnavailable before PostgreSQL is reached, ServingError if the stored texts cannot be read."""
        if self._unreadable is not None:
            raise ServingError(self._unreadable)
        if self._stores is None:
            raise StateUnavailable("the stored conversations cannot be reached yet", RETRY_AFTER_S)
        return self._stores

    @property
    def has_titles(self) -> bool:
        """Whether conversations without a title get one."""
        return self._config.titles

    @property
    def max_item_bytes(self) -> int:
        return self._config.max_item_bytes

    async def close(self) -> None:
        if self._stores is not None:
            await self._stores.event_writer.close()
        await self.idempotency_keys.settled()
        await end_tasks(self._jobs)
        for database in self._databases():
            await database.close()
        await self.live_tails.close()
        await self.redis.close()
        await self.limits_redis.close()
        if self.local is not None:
            await asyncio.to_thread(self.local.stop)
        for _, server in self._local_redis:
            await asyncio.to_thread(server.stop)

    def store_statuses(self) -> list[StoreStatus]:
        """PostgreSQL and both uses of Redis, by the last look."""
        embedded = {id(client) for client, _ in self._local_redis}
        redis = {"Redis": self.redis, "Redis of limits": self.limits_redis}
        return [
            StoreStatus(name="PostgreSQL", is_there=self._is_reached, is_embedded=self.local is not None),
            *[
                StoreStatus(name=name, is_there=client.is_there, is_embedded=id(client) in embedded)
                for name, client in redis.items()
            ],
        ]

    async def _tend(self) -> None:
        try:
            await self.look()
        except Exception:
            self._is_reached = False
            raise
        self._is_reached = True
        await self.stores.orphans.end()

    async def _delete_old(self) -> None:
        await self._is_ready.wait()
        await self.stores.retention.run()

    async def _index(self) -> None:
        await self._is_ready.wait()
        while await self.stores.search.catch_up():
            pass

    async def look(self) -> None:
        """Start PostgreSQL if Baton runs it, prepare the stores at the first call, and check that PostgreSQL can be
        reached.

        Raises:
            ServiceFailed, StateUnavailable: PostgreSQL does not start, or is away.
            ServingError: the database was written with another master key.
            RuntimeError, ValueError: a newer Baton has written the database, or the config does not fit PostgreSQL.
        """
        if self.local is not None and (self._url is None or not self.local.is_running):
            self._url = await asyncio.to_thread(self.local.start)
        if self._database is None or self._writing is None:
            assert self._url is not None
            self._database = Database(self._url, self._config.max_connections, self._config.max_bytes_of)
            self._writing = Database(self._url, 1)
            self._checking = Database(self._url, 1) if self._serves else None
            self._recording = Database(self._url, 1) if self._serves else None
            for database in self._databases():
                await database.open()
        if self._stores is None:
            await self._database.probe()  # a server that is away is told from one that is slow
            for database in self._databases():
                await database.connected()
            await self._database.migrate()
            await self._check_master_key(self._database)
            ledger = LedgerStore(self._recording or self._writing, publishes=self._publishes_usage)
            stores = stores_in(
                self._database, self._writing, ledger, self._keys, self.live_tails, self.cache, self._config
            )
            await stores.search.check()
            self._stores = stores
            stores.event_writer.start()
            self._is_ready.set()
        try:
            await self._database.probe()
        except StateUnavailable:
            for database in self._databases():
                await database.drop_broken()
            raise
        async with self._writing.transaction(EVERY_TENANT) as transaction:
            await self._keys.forget_destroyed(transaction)

    def administration(self, report: Callable[[str], None]) -> Administration:
        """The administration of the database that `look` has reached."""
        assert self._database is not None
        return Administration(
            TenantDatabase(self._database, self._keys), self._keys, (self.redis, self.limits_redis), report
        )

    def accounts(self) -> AccountStores:
        """The accounts. Raises StateUnavailable before `look` has reached and migrated the database."""
        if self._database is None or not self._is_ready.is_set():
            raise StateUnavailable("the accounts cannot be reached yet", RETRY_AFTER_S)
        return AccountStores.of(self._database)

    def _checked_in(self) -> Database:
        """Where credentials are looked up. Raises StateUnavailable before it is reached and migrated."""
        if self._checking is None or not self._is_ready.is_set():
            raise StateUnavailable("the accounts cannot be reached yet", RETRY_AFTER_S)
        return self._checking

    def _databases(self) -> list[Database]:
        found = (self._recording, self._checking, self._writing, self._database)
        return [one for one in found if one is not None]

    async def _check_master_key(self, database: Database) -> None:
        self._unreadable = None
        try:
            async with database.transaction(EVERY_TENANT) as transaction:
                await self._keys.check(transaction)
        except StateUnavailable:
            raise
        except ServingError as error:
            self._unreadable = str(error)
            raise

    async def look_for_redis(self) -> None:
        """Start the servers of Redis that Baton runs, and check whether they can be reached. One that does not start
        keeps no other from it. Raises ServiceFailed.
        """
        stopped = [(client, server) for client, server in self._local_redis if not server.is_running]
        started = await asyncio.gather(
            *(asyncio.to_thread(server.start) for _, server in stopped), return_exceptions=True
        )
        for (client, _), url in zip(stopped, started, strict=True):
            if isinstance(url, str):
                client.reach(url)
        for client in (self.redis, self.limits_redis):
            await client.run(("PING",))  # finds an outage, and its end, before a request has to
        await self.cache.settle()
        for failure in started:
            if isinstance(failure, BaseException):
                raise failure


async def _repeat(job: Callable[[], Awaitable[None]], interval_s: float) -> None:
    """Run a job for ever. Each job has a task of its own, so that no job waits for another one."""
    wait_s = interval_s
    while True:
        try:
            await job()
            wait_s = interval_s
        except Exception as error:  # every failure may be over at the next try
            wait_s = min(2 * wait_s, MAX_LOOK_INTERVAL_S)
            logger.error("%s; the next try is in %g s", error, wait_s)
        await asyncio.sleep(wait_s)
