"""Copies of what was read, sealed, in Redis: shown again while PostgreSQL is away, and never after a deletion.

What belongs to a scope (a conversation, a response) lies under one mark there. Who reads PostgreSQL takes the mark
first; a copy is kept only if the mark is still the same. A deletion removes mark and copies together once PostgreSQL
knows of it, so that a slower reader keeps nothing; and so does a Redis that forgets.
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
"""Of a copy; what is larger is not kept."""
MAX_SCOPE = 64
"""Characters. Ids that clients make up may be longer; nothing is found under them."""
MARK_S = 60
"""Longer than any reader of PostgreSQL needs."""
MAX_OWED = 100_000

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


class Copy(NamedTuple):
    body: Body
    age_s: float | None
    """None: it is no copy."""


class ReadCache:
    def __init__(self, volatile: RedisClient, keys: TenantKeys, keep_s: float) -> None:
        self._volatile = volatile
        self._keys = keys
        self._keep_s = keep_s
        self._owed: LRUCache[str, object] = LRUCache(MAX_OWED)
        """What was deleted while Redis was away."""

    async def read(self, tenant: str, scope: str, name: str, ask: Callable[[], Awaitable[Body]]) -> Copy:
        """What `ask` gives; or what it gave last, when it raises StateUnavailable. Raises what it raises."""
        mark = await self.mark(tenant, scope)
        try:
            body = await ask()
        except StateUnavailable:
            copy = await self.get(tenant, scope, name)
            if copy is None:
                raise
            return copy
        except NotFound:
            await self.forget(tenant, [scope])  # whoever has deleted it
            raise
        if mark is not None:
            await self.put(tenant, scope, name, body, mark)
        return Copy(body, None)

    @asynccontextmanager
    async def forgetting(self, tenant: str, scope: str) -> AsyncIterator[list[str]]:
        """Around what deletes or replaces something in PostgreSQL: whatever comes of it, no copy from before is shown.
        Gives the list of the scopes, which may be added to.
        """
        scopes = [scope]
        try:
            yield scopes
        finally:
            await self.forget(tenant, scopes)

    async def mark(self, tenant: str, scope: str) -> str | None:
        """To be taken before PostgreSQL is read. None: nothing can be kept."""
        if self._keep_s == 0 or len(scope) > MAX_SCOPE:
            return None
        answers = await self._volatile.run(("EVAL", _TAKE_MARK, 1, _name(tenant, scope), uuid4().hex, MARK_S))
        return None if answers is None else str(answers[0].decode())

    async def put(self, tenant: str, scope: str, name: str, body: Body, mark: str) -> None:
        """`body`: read after the mark was taken."""
        key = self._keys.remembered(tenant)
        text = msgspec.json.encode((time.time(), body))
        if key is not None and len(text) <= MAX_BYTES:
            sealed = msgspec.msgpack.encode((key.version, key.seal(text, _place(scope, name))))
            keep_s = math.ceil(self._keep_s)
            await self._volatile.run(("EVAL", _KEEP, 1, _name(tenant, scope), mark, f"copy:{name}", sealed, keep_s))

    async def get(self, tenant: str, scope: str, name: str) -> Copy | None:
        where = _name(tenant, scope)
        answers = None if where in self._owed else await self._volatile.run(("HGET", where, f"copy:{name}"))
        if not answers or answers[0] is None or where in self._owed:
            return None
        version, sealed = msgspec.msgpack.decode(answers[0], type=tuple[int, bytes])
        key = self._keys.remembered(tenant, version)
        if key is None:
            return None
        with suppress(ServingError):  # somebody else's
            text = key.unseal(sealed, _place(scope, name))
            read_at, body = msgspec.json.decode(text, type=tuple[float, Body])
            age_s = max(0.0, time.time() - read_at)
            return Copy(body, age_s) if age_s <= self._keep_s else None
        return None

    async def forget(self, tenant: str, scopes: list[str]) -> None:
        for scope in scopes:
            self._owed[_name(tenant, scope)] = object()
        await self.settle()

    async def settle(self) -> None:
        """Forget what could not be forgotten while Redis was away."""
        owed = dict(self._owed)
        if owed and await self._volatile.run(("DEL", *owed)) is not None:
            for name, deletion in owed.items():
                if self._owed.get(name) is deletion:  # and not a later one
                    del self._owed[name]


def _name(tenant: str, scope: str) -> str:
    return f"baton:cache:{tenant}:{scope}"


def _place(scope: str, name: str) -> str:
    return f"cache/{scope}/{name}"
