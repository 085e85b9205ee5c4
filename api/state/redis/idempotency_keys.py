"""Where idempotency keys are kept (api/responses/idempotency.py says what they are for).

A replica that admits a request claims its key, and settles the claim when the request is admitted or refused. The
claims are in Redis, for all replicas. A replica also remembers its own claims, for when Redis is away or has forgotten
them.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from cachetools import TLRUCache, TTLCache

from api.state.redis.client import Command, RedisClient

KEPT_S = 600
"""How long the key of an admitted request is kept, in seconds. Longer takes memory of Redis; shorter answers a late
retry as a new request.
"""
CLAIM_S = 10.0
"""How long the claim of a replica that admits a request lasts after its last renewal, in seconds. Longer keeps the
client of a lost replica waiting; shorter takes a replica whose event loop stands still for a lost one, so that a
request may be answered twice.
"""
RENEWALS_PER_CLAIM = 4
"""Renewals of a claim in CLAIM_S. Fewer loses a claim after fewer failed renewals; more makes more calls to Redis."""
MAX_HERE = 10_000
"""Claims that a replica remembers. Fewer forgets sooner while Redis is away; more takes memory."""

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


class KeyClaim(NamedTuple):
    """The request that owns an idempotency key, and its response."""

    fingerprint: str
    """The hash of the request. Another request with the same key is in conflict."""
    response: str


class HeldClaim(NamedTuple):
    """A claim, and whether its request is admitted already or still being admitted."""

    claim: KeyClaim
    is_admitted: bool

    @property
    def lasts_s(self) -> float:
        return KEPT_S if self.is_admitted else CLAIM_S

    def __str__(self) -> str:
        return " ".join([*self.claim, "admitted" if self.is_admitted else "admitting"])

    @classmethod
    def parsed(cls, text: str) -> "HeldClaim":
        fingerprint, response, standing = text.split(" ")
        return cls(KeyClaim(fingerprint, response), standing == "admitted")


class IdempotencyKeys:
    def __init__(self, redis: RedisClient, hashed: Hash) -> None:
        """`hashed`: a keyed hash of texts from clients. A reader of Redis cannot check a guess of a text by it."""
        self._redis = redis
        self.hashed = hashed
        self._own: TTLCache[str, HeldClaim] = TTLCache(MAX_HERE, KEPT_S)
        """The claims of this replica."""
        self._seen: TLRUCache[str, HeldClaim] = TLRUCache(MAX_HERE, lambda _, held, now: now + held.lasts_s)
        """The claims of other replicas that this one has met, for when Redis is away."""
        self._settling: set[asyncio.Task[Any]] = set()

    async def claim(self, tenant: str, name: str, claim: KeyClaim, gone: KeyClaim | None = None) -> "Hold | HeldClaim":
        """Claim a key. Returns a hold if the key is free, or if its response is `gone`; else the claim that has the
        key.
        """
        key, mine = self._key(tenant, name), HeldClaim(claim, is_admitted=False)
        gone_value = "" if gone is None else str(HeldClaim(gone, is_admitted=True))
        answer = await self._run(("EVAL", _CLAIM, 1, key, str(mine), _milliseconds(CLAIM_S), gone_value))
        own = self._own.get(key)
        if own is not None and own.claim in (gone, claim):
            own = None
        if answer is None:
            held = own or self._seen.get(key) or mine
        elif (held := HeldClaim.parsed(answer.decode())) == mine and own is not None:  # Redis has forgotten the claim
            held = own
            await self._set(key, own)
        if held.claim in (gone, claim):
            self._own[key] = mine
            return Hold(self, key, claim)
        self._seen[key] = held
        return held

    async def take(self, tenant: str, name: str, claim: KeyClaim) -> "Hold":
        """Claim a key even if another request has it. A client that sends an equal request that is no retry gets
        another response, and a retry finds the newest one.
        """
        key = self._key(tenant, name)
        self._own[key] = HeldClaim(claim, is_admitted=False)
        await self._set(key, self._own[key])
        return Hold(self, key, claim)

    async def settled(self) -> None:
        """Wait until Redis has all settled claims."""
        while self._settling:
            await asyncio.wait(self._settling)

    async def _set(self, key: str, held: HeldClaim) -> None:
        await self._redis.run(("SET", key, str(held), "PX", _milliseconds(held.lasts_s)))

    async def _run(self, command: Command) -> bytes | None:
        answers = await self._redis.run(command)
        answer: bytes | None = answers[0] if answers else None
        return answer

    def _key(self, tenant: str, name: str) -> str:
        return f"baton:request:{tenant}:{self.hashed(name)}"

    def _replace(self, key: str, claim: KeyClaim, held: HeldClaim | None) -> None:
        """Replace the claim of this replica, unless another request has taken the key. None frees the key."""
        if (own := self._own.get(key)) is not None and own.claim == claim:
            if held is None:
                del self._own[key]
            else:
                self._own[key] = held
        before, after = str(HeldClaim(claim, is_admitted=False)), "" if held is None else str(held)
        lasts_s = 0 if held is None else held.lasts_s
        settling = asyncio.ensure_future(self._run(("EVAL", _REPLACE, 1, key, before, after, _milliseconds(lasts_s))))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)


class Hold:
    """The key of a request that is being admitted here. The claim is renewed until it is settled."""

    def __init__(self, keys: IdempotencyKeys, key: str, claim: KeyClaim) -> None:
        self._keys = keys
        self._key = key
        self._claim = claim
        self._renewal: asyncio.TimerHandle | None = None
        self._renew_later()

    def settle(self, starting: "asyncio.Future[Any]") -> None:
        """Settle the claim when `starting` is done: the request was admitted, or refused."""
        if starting.cancelled() or starting.exception() is not None:
            self.refuse()
        elif self._renewal is not None:
            self._end(HeldClaim(self._claim, is_admitted=True))

    def refuse(self) -> None:
        """Free the key, so that the next try counts as the first one."""
        if self._renewal is not None:
            self._end(None)

    def _end(self, held: HeldClaim | None) -> None:
        assert self._renewal is not None
        self._renewal.cancel()
        self._renewal = None
        self._keys._replace(self._key, self._claim, held)

    def _renew_later(self) -> None:
        self._renewal = asyncio.get_running_loop().call_later(CLAIM_S / RENEWALS_PER_CLAIM, self._renew)

    def _renew(self) -> None:
        self._keys._replace(self._key, self._claim, HeldClaim(self._claim, is_admitted=False))
        self._renew_later()


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
