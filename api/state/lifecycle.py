"""What an ingress replica remembers, and where: PostgreSQL, which is started where it has no URL, migrated, and waited
for while it is away; and Redis, a help that is started in the same way, and done without while it is away.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from api.state.administration import Administration
from api.state.encryption.master_keys import master_key
from api.state.encryption.tenant_keys import TenantKeys
from api.state.event_streams.event_log import LogSpace
from api.state.event_streams.live_tails import LiveTails
from api.state.postgres.database import EVERY_TENANT, RETRY_AFTER_S, Database
from api.state.redis.client import RedisClient
from api.state.redis.idempotency_keys import IdempotencyKeys
from api.state.redis.read_cache import ReadCache
from api.state.stores import Stores, stores_in
from cluster.config.environment import DATABASE_URL_VARIABLE, REDIS_URL_VARIABLE
from cluster.config.repository import REPO_ROOT
from cluster.config.state import StateConfig
from cluster.errors import ServingError, StateUnavailable
from cluster.services.postgres import POSTGRES_FOLDER, LocalPostgres
from cluster.services.redis import REDIS_FOLDER, LocalRedis

logger = logging.getLogger("baton.state")

LOOK_INTERVAL_S = 1.0
"""Between two looks at whether PostgreSQL or Redis runs, or can be reached."""
MAX_LOOK_INTERVAL_S = 30.0
"""While it cannot be."""
PURGE_INTERVAL_S = 300.0
MAX_LOG_BYTES = 512 << 20
"""That the running responses of a replica may have told together; the largest is ended where it is more. Less ends long
answers sooner while there are many; more takes memory that the replica needs for requests.
"""


class ChatState:
    def __init__(self, config: StateConfig) -> None:
        """Raises ValueError for a master key or a URL of Redis that is none, OSError where a key cannot be kept."""
        self._config = config
        folder = REPO_ROOT / config.data_dir
        # A variable that is empty is as one that is not set
        self._url = os.environ.get(DATABASE_URL_VARIABLE) or config.database_url
        self.local = None if self._url else LocalPostgres(folder / POSTGRES_FOLDER)
        """Where PostgreSQL has no URL."""
        self._keys = TenantKeys(master_key(config.master_key, folder))
        self._database: Database | None = None
        self._writing: Database | None = None
        """The same, on a connection that clients cannot keep busy: leases are renewed whatever they ask for."""
        self._stores: Stores | None = None
        self._unreadable: str | None = None
        """Why nothing can be read, though PostgreSQL is there."""
        self._is_ready = asyncio.Event()
        """The stores have been reached once."""
        self._jobs: list[asyncio.Task[None]] = []

        self.log_space = LogSpace(MAX_LOG_BYTES, config.max_response_bytes)
        """For what responses tell while they are generated here."""
        self._volatile = RedisClient()
        self.tails = LiveTails(self._volatile)
        self.retries = IdempotencyKeys(self._volatile, self._keys.hashed)
        self.cache = ReadCache(self._volatile, self._keys, config.cache_s)
        redis_url = os.environ.get(REDIS_URL_VARIABLE) or config.redis_url
        self._local_redis = None if redis_url else LocalRedis(folder / REDIS_FOLDER)
        if redis_url:
            self._volatile.reach(redis_url)

    def start(self) -> None:
        """Becomes ready in the background: nobody who asks without a conversation waits for it."""
        jobs = (
            (self._tend, LOOK_INTERVAL_S),
            (self._purge, PURGE_INTERVAL_S),
            (self._index, LOOK_INTERVAL_S),
            (self.look_for_redis, LOOK_INTERVAL_S),
        )
        self._jobs = [asyncio.create_task(_kept_up(job, interval_s)) for job, interval_s in jobs]

    @property
    def stores(self) -> Stores:
        """Raises StateUnavailable until they can be reached for the first time, ServingError if they cannot be read."""
        if self._unreadable is not None:
            raise ServingError(self._unreadable)
        if self._stores is None:
            raise StateUnavailable("conversations cannot be reached yet", RETRY_AFTER_S)
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
            await self._stores.log_writer.close()
        await self.retries.settled()
        for job in self._jobs:
            job.cancel()
        if self._jobs:
            await asyncio.wait(self._jobs)
        for database in (self._writing, self._database):
            if database is not None:
                await database.close()
        await self.tails.close()
        await self._volatile.close()
        for local in (self.local, self._local_redis):
            if local is not None:
                await asyncio.to_thread(local.stop)

    async def _tend(self) -> None:
        await self.look()
        await self.stores.orphans.end()

    async def _purge(self) -> None:
        await self._is_ready.wait()
        await self.stores.purges.run()

    async def _index(self) -> None:
        await self._is_ready.wait()
        while await self.stores.search.catch_up():
            pass

    async def look(self) -> None:
        """Start what does not run, and reach what runs.

        Raises:
            ServiceFailed, StateUnavailable: PostgreSQL does not start, or is away.
            ServingError: the master key is another one than that of the database.
            RuntimeError, ValueError: the database, or the config, is not fit for Baton.
        """
        if self.local is not None and (self._url is None or not self.local.is_running):
            self._url = await asyncio.to_thread(self.local.start)
        if self._database is None or self._writing is None:
            assert self._url is not None
            self._database = Database(self._url, self._config.max_connections, self._config.max_bytes_of)
            self._writing = Database(self._url, 1)
            for database in (self._database, self._writing):
                await database.open()
        if self._stores is None:
            await self._database.migrate()
            await self._check_master_key(self._database)
            stores = stores_in(self._database, self._writing, self._keys, self.tails, self.cache, self._config)
            await stores.search.check()
            self._stores = stores
            stores.log_writer.start()
            self._is_ready.set()
        try:
            await self._database.probe()
        except StateUnavailable:
            for database in (self._database, self._writing):
                await database.drop_broken()
            raise
        async with self._writing.transaction(EVERY_TENANT) as transaction:
            await self._keys.forget_destroyed(transaction)

    def administration(self, tell: Callable[[str], None]) -> Administration:
        """Of what `look` has reached."""
        assert self._database is not None
        return Administration(self._database, self._keys, self._volatile, tell)

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
        """The same for Redis. Raises ServiceFailed."""
        if self._local_redis is not None and not self._local_redis.is_running:
            self._volatile.reach(await asyncio.to_thread(self._local_redis.start))
        await self._volatile.run(("PING",))  # an outage is noticed, and its end, before a request waits for it
        await self.cache.settle()


async def _kept_up(job: Callable[[], Awaitable[None]], interval_s: float) -> None:
    """Again and again; each job by itself, so that none waits for another one, or for what that one waits for."""
    wait_s = interval_s
    while True:
        try:
            await job()
            wait_s = interval_s
        except Exception as error:  # whatever it is, it may be over the next time
            wait_s = min(2 * wait_s, MAX_LOOK_INTERVAL_S)
            logger.error("%s; tried again in %g s", error, wait_s)
        await asyncio.sleep(wait_s)
