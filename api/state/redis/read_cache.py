"""Stale reads: sealed copies of reads in Redis, which answer requests while PostgreSQL is away. No copy is shown after
its original was deleted.

All copies of a scope (a conversation, a response) are under one name in Redis, beside a mark. A reader takes the mark
before it reads PostgreSQL, and its copy is stored only if the mark is still the same. A deletion removes the mark with
the copies once PostgreSQL has deleted the original, so that a reader that was slower stores no copy. The same holds
when Redis forgets the mark.
"""

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from cachetools import LRUCache

from api.state.encryption.tenant_keys import TenantKeys
from api.state.redis.client import RedisClient
from cluster.errors import NotFound, ServingError, StateUnavailable

MAX_BYTES = 1 << 20
"""Bytes of a copy; a larger read is not copied. More takes memory of Redis; less answers fewer reads while PostgreSQL
is away.
"""
MAX_SCOPE = 64
"""Characters of a scope's id that can have copies. Baton's own ids are shorter; a longer id was made up by a client."""
MARK_S = 60
"""How long a mark is kept without a copy, in seconds: longer than any read of PostgreSQL takes. Shorter loses the
copies of slow reads; longer takes memory of Redis.
"""
MAX_OWED = 100_000
"""Deletions that a replica remembers while Redis is away. More takes memory; beyond the bound the oldest is forgotten,
and a copy of its original may be shown.
"""

_TAKE_MARK = """
local mark = redis.call('HGET', KEYS[1], 'mark')
if not mark then
  mark = ARGV[1]
  redis.call('HSET', KEYS[1], 'mark', mark)
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
return mark
"""
_KEEP = """
if redis.call('HGET', KEYS[1], 'mark') == ARGV[1] then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
"""

Body = dict[str, Any]


class CachedRead(NamedTuple):
    body: Body
    age_s: float | None
    """Seconds since a copy was made. None if PostgreSQL has answered."""


class ReadCache:
    def __init__(self, redis: RedisClient, keys: TenantKeys, keep_s: float) -> None:
        self._redis = redis
        self._keys = keys
        self._keep_s = keep_s
        self._owed: LRUCache[str, object] = LRUCache(MAX_OWED)
        """Names whose copies must be deleted when Redis is back."""

    async def read(self, tenant: str, scope: str, name: str, read: Callable[[], Awaitable[Body]]) -> CachedRead:
        """The result of `read`, or its last copy if `read` raises StateUnavailable. Raises what `read` raises."""
        mark = await self.mark(tenant, scope)
        try:
            body = await read()
        except StateUnavailable:
            copy = await self.get(tenant, scope, name)
            if copy is None:
                raise
            return copy
        except NotFound:
            await self.forget(tenant, [scope])  # another replica may have deleted the original
            raise
        if mark is not None:
            await self.put(tenant, scope, name, body, mark)
        return CachedRead(body, None)

    @asynccontextmanager
    async def forgetting(self, tenant: str, scope: str) -> AsyncIterator[list[str]]:
        """Around a deletion or a replacement in PostgreSQL: even if the block fails, no earlier copy is shown. Yields
        the list of the scopes, to which the block may append.
        """
        scopes = [scope]
        try:
            yield scopes
        finally:
            await self.forget(tenant, scopes)

    async def mark(self, tenant: str, scope: str) -> str | None:
        """The mark of a scope, to be taken before PostgreSQL is read. None if no copy can be stored."""
        if self._keep_s == 0 or len(scope) > MAX_SCOPE:
            return None
        answers = await self._redis.run(("EVAL", _TAKE_MARK, 1, _name(tenant, scope), uuid4().hex, MARK_S))
        return None if answers is None else str(answers[0].decode())

    async def put(self, tenant: str, scope: str, name: str, body: Body, mark: str) -> None:
        """Store a copy. `body`: read after the mark was taken."""
        key = self._keys.remembered(tenant)
        text = msgspec.json.encode((time.time(), body))
        if key is not None and len(text) <= MAX_BYTES:
            sealed = msgspec.msgpack.encode((key.version, key.seal(text, _place(scope, name))))
            keep_s = math.ceil(self._keep_s)
            await self._redis.run(("EVAL", _KEEP, 1, _name(tenant, scope), mark, f"copy:{name}", sealed, keep_s))

    async def get(self, tenant: str, scope: str, name: str) -> CachedRead | None:
        where = _name(tenant, scope)
        answers = None if where in self._owed else await self._redis.run(("HGET", where, f"copy:{name}"))
        if not answers or answers[0] is None or where in self._owed:
            return None
        version, sealed = msgspec.msgpack.decode(answers[0], type=tuple[int, bytes])
        key = self._keys.remembered(tenant, version)
        if key is None:
            return None
        with suppress(ServingError):  # the copy was not sealed for this place
            text = key.unseal(sealed, _place(scope, name))
            read_at, body = msgspec.json.decode(text, type=tuple[float, Body])
            age_s = max(0.0, time.time() - read_at)
            return CachedRead(body, age_s) if age_s <= self._keep_s else None
        return None

    async def forget(self, tenant: str, scopes: list[str]) -> None:
        """Delete the copies of these scopes, or remember to delete them when Redis is back."""
        for scope in scopes:
            self._owed[_name(tenant, scope)] = object()
        await self.settle()

    async def settle(self) -> None:
        """Delete the copies that could not be deleted while Redis was away."""
        owed = dict(self._owed)
        if owed and await self._redis.run(("DEL", *owed)) is not None:
            for name, deletion in owed.items():
                if self._owed.get(name) is deletion:  # else the scope was forgotten again meanwhile
                    del self._owed[name]


def _name(tenant: str, scope: str) -> str:
    return f"baton:cache:{tenant}:{scope}"


def _place(scope: str, name: str) -> str:
    return f"cache/{scope}/{name}"
