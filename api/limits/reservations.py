"""Reservations: what a request may use is reserved in all of its limits before it is generated, and settled when it has
ended. Redis counts (api/limits/reserve.lua), for all replicas.

A reservation that is not settled ends by itself: its replica renews it as long as the object is alive. So neither a
replica that dies nor a request that forgets to settle holds anything back for longer than `limits.reservation_s`.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from uuid import uuid4
from weakref import WeakSet

from api.limits.budget import Denied, Entry, Granted, Unseeded
from api.limits.counters import Room
from api.limits.fallback import LocalShares
from api.limits.headers import rate_limit_headers, refusal
from api.limits.limits import Amounts, Bucket
from api.limits.recent_refusals import RecentRefusals
from api.limits.recent_rooms import RecentRooms
from api.limits.script import ReservationScript, Unanswered, script_text
from api.limits.seeds import Seeds, SpentPort
from api.limits.settlements import Settlement, Settlements
from api.state.redis.client import RedisClient
from cluster.config.tenants.limits import LimitsConfig
from cluster.errors import LimitsUnavailable, StateUnavailable
from cluster.metrics.tenants import LIMIT_DECISIONS

RENEWALS = 3
"""Renewals of a reservation in its lifetime. More costs more calls to Redis; fewer ends the reservation of a running
request after fewer renewals that fail.
"""
RENEWED_AT_ONCE = 200
"""Reservations that one round trip renews. More makes fewer round trips; fewer delays other calls of Redis less."""
RETRY_AFTER_S = 5.0
"""The Retry-After of a request that cannot be counted, in seconds. Longer leaves capacity unused when Redis is back;
shorter brings the request back too early.
"""


class Reservation:
    """What one request has reserved. It must be settled or refunded once; further calls change nothing."""

    __slots__ = ("__weakref__", "_owner", "entry", "is_local", "is_open", "rooms", "tenant")

    def __init__(self, owner: "Reservations", tenant: str, entry: Entry, rooms: list[Room], is_local: bool) -> None:
        self._owner = owner
        self.tenant = tenant
        self.entry = entry
        self.rooms = rooms
        self.is_local = is_local
        """Whether it was granted while Redis was away."""
        self.is_open = True

    @property
    def headers(self) -> dict[str, str]:
        return rate_limit_headers(self.entry.buckets, self.rooms)

    def settle(self, actual: Amounts) -> None:
        """Count what the request has used. It does not wait for Redis, so that a cancelled request can call it."""
        if self.is_open:
            self.is_open = False
            self._owner.settle_open(self, actual.bounded())

    def refund(self) -> None:
        """The request was not served, and counts as never sent."""
        self.settle(Amounts(0))


class _Attempt:
    """What is known of a reservation that is being asked for."""

    __slots__ = ("may_be_reserved",)

    def __init__(self) -> None:
        self.may_be_reserved = False
        """Whether Redis may have made it, or may still make it, though nobody has heard so."""


class Reservations:
    def __init__(
        self,
        redis: RedisClient,
        config: LimitsConfig,
        num_replicas: int,
        ledger: SpentPort | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`num_replicas`: each has its share of the limits while Redis is away. `ledger`: says what was spent before
        Redis knew of it, or after it has forgotten; None if nothing is recorded. `now_ms`: the time since 1970.
        """
        self._script = ReservationScript(redis, script_text())
        self._settlements = Settlements(self._script)
        self._local = LocalShares(num_replicas)
        self._refusals = RecentRefusals()
        self._rooms = RecentRooms()
        self._config = config
        self._lifetime_ms = int(config.reservation_s * 1000)
        self._seeds = None if ledger is None else Seeds(ledger)
        self._now_ms = now_ms
        self._ahead_ms = 0
        """How far the clock of Redis is ahead of this one, at most."""
        self._away_since: float | None = None
        self._open: WeakSet[Reservation] = WeakSet()
        self._renewing: asyncio.Task[None] | None = None

    def look(self, buckets: tuple[Bucket, ...]) -> None:
        """An early look, which asks nobody: it finds limits that this replica has just seen without room.

        Raises:
            RateLimited, QuotaExceeded: a limit has no room for any request.
        """
        error = self._refusals.of(buckets, asyncio.get_running_loop().time())
        if error is not None:
            LIMIT_DECISIONS.labels("denied", "before").inc()
            raise error

    def expects_room(self, buckets: tuple[Bucket, ...], asked: Amounts) -> bool:
        """Whether the request may begin before it is granted: all of its limits had ample room a moment ago. What this
        replica begins so without asking again is less than that room.
        """
        return self._rooms.take(buckets, asked, asyncio.get_running_loop().time())

    async def reserve(self, tenant: str, buckets: tuple[Bucket, ...], asked: Amounts) -> Reservation:
        """Reserve what a request may use at most, in all buckets or in none. `tenant`: its name in Redis.

        Raises:
            RateLimited: a limit per minute, or of concurrent requests, has no room.
            QuotaExceeded: a budget has no room.
            InvalidRequest: the request is larger than a limit per minute.
            LimitsUnavailable: Redis is away, and the replica may not decide alone; or the ledger is away.
        """
        entry = Entry(uuid4().hex, self._redis_now_ms(), buckets, asked.bounded())
        if not buckets:
            return Reservation(self, tenant, entry, [], False)
        answer, is_local = await self._decided(tenant, entry)
        counted = "locally" if is_local else "redis"
        if isinstance(answer, Denied):
            LIMIT_DECISIONS.labels("denied", counted).inc()
            self._refusals.note(buckets, answer, asyncio.get_running_loop().time())
            raise refusal(buckets, answer, entry.reserved)
        LIMIT_DECISIONS.labels("granted", counted).inc()
        if not is_local:
            self._rooms.note(buckets, answer.rooms, asyncio.get_running_loop().time())
        entry = entry._replace(taken_at_ms=answer.now_ms)
        reservation = Reservation(self, tenant, entry, answer.rooms, is_local)
        self._open.add(reservation)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew_for_ever())
        return reservation

    def settle_open(self, reservation: Reservation, actual: Amounts) -> None:
        """Called once for each reservation, by itself."""
        self._open.discard(reservation)
        if not reservation.entry.buckets:
            return
        if reservation.is_local:
            self._local.settle(reservation.tenant, reservation.entry, actual, self._redis_now_ms())
        self._settlements.add(Settlement(reservation.tenant, reservation.entry, actual, self._redis_now_ms()))

    async def settled(self) -> None:
        """Wait until Redis has all settlements."""
        await self._settlements.written()

    async def close(self, within_s: float) -> None:
        """What is not settled within this time expires; what is not written by then is lost."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._seeds is not None:
            await self._seeds.close()
        await self._settlements.close(within_s)

    async def _decided(self, tenant: str, entry: Entry) -> tuple[Granted | Denied, bool]:
        """The decision, and whether this replica has made it alone. What Redis may have reserved for a request that is
        not granted, because its answer came too late or its caller was cancelled, is given back. Raises
        LimitsUnavailable.
        """
        attempt = _Attempt()
        try:
            answer, is_local = await self._tried(tenant, entry, attempt)
            if isinstance(answer, Granted):
                attempt.may_be_reserved = False
            return answer, is_local
        finally:
            if attempt.may_be_reserved:
                self._settlements.add(Settlement(tenant, entry, Amounts(0), self._redis_now_ms()))

    async def _tried(self, tenant: str, entry: Entry, attempt: "_Attempt") -> tuple[Granted | Denied, bool]:
        seeds: dict[int, int] | None = None if self._seeds is None else {}
        while True:
            asked_at_ms = self._now_ms()
            was_unsure, attempt.may_be_reserved = attempt.may_be_reserved, True  # while the caller may be cancelled
            self._settlements.begin()
            answer = await self._script.reserve(tenant, entry, self._lifetime_ms, seeds)
            is_local = isinstance(answer, Unanswered)
            attempt.may_be_reserved = was_unsure or (isinstance(answer, Unanswered) and answer.may_be_reserved)
            if isinstance(answer, Unanswered):
                answer = self._decided_alone(tenant, entry, seeds)
            else:
                self._away_since = None
                self._ahead_ms = answer.now_ms - asked_at_ms
            if not isinstance(answer, Unseeded):
                return answer, is_local
            assert seeds is not None
            unknown = [index for index in answer.buckets if index not in seeds]
            found = await asyncio.gather(*(self._spent(tenant, entry.buckets[index]) for index in unknown))
            seeds |= dict(zip(unknown, found, strict=True))

    def _decided_alone(self, tenant: str, entry: Entry, seeds: dict[int, int] | None) -> Granted | Denied | Unseeded:
        now = asyncio.get_running_loop().time()
        if self._away_since is None:
            self._away_since = now
            self._local.begin(self._redis_now_ms())
        longest_s = self._config.budgets_without_redis_s
        is_long_away = longest_s is not None and now - self._away_since >= longest_s
        if is_long_away and any(bucket.kind.is_budget for bucket in entry.buckets):
            raise self._unavailable("budgets cannot be checked now")
        answer = self._local.reserve(tenant, entry, self._lifetime_ms, self._redis_now_ms(), seeds)
        if answer is None:
            raise self._unavailable("one replica may not grant this request alone")
        return answer

    async def _spent(self, tenant: str, bucket: Bucket) -> int:
        """Raises LimitsUnavailable."""
        assert self._seeds is not None
        try:
            return await self._seeds.spent(tenant, bucket, self._redis_now_ms())
        except (StateUnavailable, TimeoutError):
            raise self._unavailable("what was spent of a budget cannot be looked up now") from None

    async def _renew_for_ever(self) -> None:
        """As long as requests are open."""
        while self._open:
            await asyncio.sleep(self._config.reservation_s / RENEWALS)
            await self._renew_all()

    async def _renew_all(self) -> None:
        """It must not hold the reservations when it has ended: what no request holds any more is to expire."""
        reservations = list(self._open)
        for first in range(0, len(reservations), RENEWED_AT_ONCE):
            await self._renew(reservations[first : first + RENEWED_AT_ONCE])

    async def _renew(self, reservations: Sequence[Reservation]) -> None:
        for reservation in reservations:
            if reservation.is_local and reservation.is_open:
                self._local.renew(reservation.tenant, reservation.entry, self._lifetime_ms, self._redis_now_ms())
        await asyncio.gather(
            *(
                self._script.renew(reservation.tenant, reservation.entry, self._lifetime_ms)
                for reservation in reservations
                if reservation.is_open
            )
        )

    def _redis_now_ms(self) -> int:
        return self._now_ms() + self._ahead_ms

    def _unavailable(self, why: str) -> LimitsUnavailable:
        LIMIT_DECISIONS.labels("denied", "nowhere").inc()
        return LimitsUnavailable(f"{why}; this lasts until the service that counts is back", RETRY_AFTER_S)
