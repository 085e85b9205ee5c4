"""Requests that are sent again, told from new ones, so that they find the response of the first try.

Who admits a request holds its name meanwhile, and says how that ended. In Redis, for all replicas; what this replica
has held itself, it knows while Redis is away too, or has forgotten.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from cachetools import TLRUCache, TTLCache

from api.state.redis.client import Command, RedisClient

KEPT_S = 600
LEASE_S = 10.0
"""Who admits a request and does not say for so long that it still does is lost: the name is free again. Longer keeps
the client of a lost replica waiting; with less, an event loop that stands still is taken for a lost one, and the
request may be answered twice.
"""
RENEWALS_PER_LEASE = 4
MAX_HERE = 10_000

_CLAIM = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[3] then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""
_REPLACE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
"""

Hash = Callable[[str], str]


class GenerationClaim(NamedTuple):
    """Who has the name of a request, which is an idempotency key or made of all of it."""

    fingerprint: str
    """Of the request that was first, hashed: of another one, the name is in conflict."""
    response: str


class HeldClaim(NamedTuple):
    claim: GenerationClaim
    is_admitted: bool
    """Else it is being admitted."""

    @property
    def lasts_s(self) -> float:
        return KEPT_S if self.is_admitted else LEASE_S

    def __str__(self) -> str:
        return " ".join([*self.claim, "admitted" if self.is_admitted else "admitting"])

    @classmethod
    def told(cls, text: str) -> "HeldClaim":
        fingerprint, response, standing = text.split(" ")
        return cls(GenerationClaim(fingerprint, response), standing == "admitted")


class IdempotencyKeys:
    def __init__(self, volatile: RedisClient, hashed: Hash) -> None:
        """`hashed`: of what clients say, with a key of Baton's. Who reads Redis cannot check guesses of it."""
        self._volatile = volatile
        self.hashed = hashed
        self._own: TTLCache[str, HeldClaim] = TTLCache(MAX_HERE, KEPT_S)
        """By this replica."""
        self._seen: TLRUCache[str, HeldClaim] = TLRUCache(MAX_HERE, lambda _, held, now: now + held.lasts_s)
        """By others, for when Redis is away."""
        self._settling: set[asyncio.Task[Any]] = set()

    async def claim(
        self, tenant: str, name: str, claim: GenerationClaim, gone: GenerationClaim | None = None
    ) -> "Hold | HeldClaim":
        """A hold for this one if the name is free, or of a response that is gone; else who has it."""
        key, mine = self._key(tenant, name), HeldClaim(claim, is_admitted=False)
        gone_value = "" if gone is None else str(HeldClaim(gone, is_admitted=True))
        told = await self._run(("EVAL", _CLAIM, 1, key, str(mine), _milliseconds(LEASE_S), gone_value))
        own = self._own.get(key)
        if own is not None and own.claim in (gone, claim):
            own = None
        if told is None:
            held = own or self._seen.get(key) or mine
        elif (held := HeldClaim.told(told.decode())) == mine and own is not None:  # Redis has forgotten it
            held = own
            await self._set(key, own)
        if held.claim in (gone, claim):
            self._own[key] = mine
            return Hold(self, key, claim)
        self._seen[key] = held
        return held

    async def take(self, tenant: str, name: str, claim: GenerationClaim) -> "Hold":
        """Whoever has it: who sends the same request again, later and on purpose, gets another response."""
        key = self._key(tenant, name)
        self._own[key] = HeldClaim(claim, is_admitted=False)
        await self._set(key, self._own[key])
        return Hold(self, key, claim)

    async def settled(self) -> None:
        """Wait for what is being said to Redis."""
        while self._settling:
            await asyncio.wait(self._settling)

    async def _set(self, key: str, held: HeldClaim) -> None:
        await self._volatile.run(("SET", key, str(held), "PX", _milliseconds(held.lasts_s)))

    async def _run(self, command: Command) -> bytes | None:
        answers = await self._volatile.run(command)
        told: bytes | None = answers[0] if answers else None
        return told

    def _key(self, tenant: str, name: str) -> str:
        return f"baton:request:{tenant}:{self.hashed(name)}"

    def _becomes(self, key: str, claim: GenerationClaim, held: HeldClaim | None) -> None:
        """What this replica holds, where nobody has taken it away."""
        if (own := self._own.get(key)) is not None and own.claim == claim:
            if held is None:
                del self._own[key]
            else:
                self._own[key] = held
        before, after = str(HeldClaim(claim, is_admitted=False)), "" if held is None else str(held)
        lasts_s = 0 if held is None else held.lasts_s
        saying = asyncio.ensure_future(self._run(("EVAL", _REPLACE, 1, key, before, after, _milliseconds(lasts_s))))
        self._settling.add(saying)
        saying.add_done_callback(self._settling.discard)


class Hold:
    """The name of a request that is being admitted here. It is renewed until it is settled."""

    def __init__(self, retries: IdempotencyKeys, key: str, claim: GenerationClaim) -> None:
        self._retries = retries
        self._key = key
        self._claim = claim
        self._renewal: asyncio.TimerHandle | None = None
        self._renew_later()

    def settle(self, starting: "asyncio.Future[Any]") -> None:
        """`starting` is done: the request was admitted, or refused."""
        if starting.cancelled() or starting.exception() is not None:
            self.refuse()
        elif self._renewal is not None:
            self._end(HeldClaim(self._claim, is_admitted=True))

    def refuse(self) -> None:
        """The next try is as the first one."""
        if self._renewal is not None:
            self._end(None)

    def _end(self, held: HeldClaim | None) -> None:
        assert self._renewal is not None
        self._renewal.cancel()
        self._renewal = None
        self._retries._becomes(self._key, self._claim, held)

    def _renew_later(self) -> None:
        self._renewal = asyncio.get_running_loop().call_later(LEASE_S / RENEWALS_PER_LEASE, self._renew)

    def _renew(self) -> None:
        self._retries._becomes(self._key, self._claim, HeldClaim(self._claim, is_admitted=False))
        self._renew_later()


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
