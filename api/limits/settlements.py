"""Settlements on their way to Redis. They are collected for a moment, or until the next reservation, which is decided
after them. While Redis is away they wait.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from api.limits.budget import Entry
from api.limits.limits import Amounts
from api.limits.script import ReservationScript
from api.state.redis.client import RedisCall
from cluster.metrics.tenants import SETTLEMENTS_LOST, SETTLEMENTS_WAITING

logger = logging.getLogger("baton.limits")

MAX_WAITING = 20_000
"""Settlements that wait for Redis in a replica. More takes memory, some 2 kB each; fewer loses the oldest ones in a
shorter outage, those of the tenant that has most. The budgets then count the reservation until it expires, and nothing
after that.
"""
AT_ONCE = 100
"""Settlements that one round trip takes. More makes fewer round trips; fewer delays other calls of Redis less."""
COLLECT_S = 0.005
"""Time in which settlements are collected for a round trip, in seconds. Longer lets other replicas count a request as
open that has ended; shorter makes more round trips, which take most of the CPU time that limits cost.
"""
RETRY_S = 1.0
"""Time between two attempts while Redis is away, in seconds. Longer counts later what was used; shorter costs more
attempts.
"""


class Settlement(NamedTuple):
    """What a request has used."""

    tenant: str
    entry: Entry
    actual: Amounts
    closed_at_ms: int


class Settlements:
    def __init__(self, script: ReservationScript) -> None:
        self._script = script
        self._waiting: dict[str, deque[Settlement]] = {}
        """Those of each tenant, so that no tenant's many requests lose the settlements of another one."""
        self._num_waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        """Begins the next batch, unless something else does so before."""
        self._not_before = 0.0
        """The event loop's time before which Redis is not tried again."""
        self._writing: set[asyncio.Task[None]] = set()
        self._is_done = asyncio.Event()
        self._is_done.set()

    def add(self, settlement: Settlement) -> None:
        if self._num_waiting >= MAX_WAITING:
            self._take(max(self._waiting, key=lambda tenant: len(self._waiting[tenant])))
            SETTLEMENTS_LOST.inc()
        self._waiting.setdefault(settlement.tenant, deque()).append(settlement)
        self._num_waiting += 1
        self._count()
        self._is_done.clear()
        self._begin_in(COLLECT_S)

    def begin(self) -> None:
        """Write what is collected, AT_ONCE of it at most: Redis counts it before what it is asked after this call."""
        if not self._waiting or asyncio.get_running_loop().time() < self._not_before:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        begun = [(settlement, self._script.begin_settling(*settlement)) for settlement in self._next_ones()]
        task = asyncio.create_task(self._write(begun))
        self._writing.add(task)
        task.add_done_callback(self._written)

    async def written(self) -> None:
        """Wait until Redis has all settlements."""
        self.begin()
        await self._is_done.wait()

    async def close(self, within_s: float) -> None:
        """What Redis has not taken by then is lost."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.written(), within_s)
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._writing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._waiting:
            logger.error("%d settlements of requests are lost: Redis has not taken them", self._num_waiting)
            SETTLEMENTS_LOST.inc(self._num_waiting)
            self._waiting.clear()
            self._num_waiting = 0
            self._count()

    async def _write(self, begun: list[tuple[Settlement, RedisCall | None]]) -> None:
        """What has no answer waits again, also if this is cancelled."""
        unanswered = deque(begun)
        failed: list[Settlement] = []
        try:
            while unanswered:
                if await self._script.settled(unanswered[0][1]) is None:
                    failed.append(unanswered[0][0])
                unanswered.popleft()
        finally:
            failed += [settlement for settlement, _ in unanswered]
            self._put_back(failed)
            self._count()
            if failed:
                self._not_before = asyncio.get_running_loop().time() + RETRY_S

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if self._waiting:
            self._begin_in(max(0.0, self._not_before - asyncio.get_running_loop().time()))
        elif not self._writing:
            self._is_done.set()

    def _begin_in(self, delay_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._end_collecting)

    def _end_collecting(self) -> None:
        self._timer = None
        self.begin()
        if self._waiting:
            self._begin_in(max(COLLECT_S, self._not_before - asyncio.get_running_loop().time()))

    def _next_ones(self) -> list[Settlement]:
        """Of each tenant in turn, its oldest one."""
        batch: list[Settlement] = []
        while self._waiting and len(batch) < AT_ONCE:
            batch += [self._take(tenant) for tenant in list(self._waiting)[: AT_ONCE - len(batch)]]
        return batch

    def _take(self, tenant: str) -> Settlement:
        """The oldest one of a tenant."""
        waiting = self._waiting[tenant]
        settlement = waiting.popleft()
        if not waiting:
            del self._waiting[tenant]
        self._num_waiting -= 1
        return settlement

    def _put_back(self, batch: list[Settlement]) -> None:
        for settlement in reversed(batch):
            self._waiting.setdefault(settlement.tenant, deque()).appendleft(settlement)
        self._num_waiting += len(batch)

    def _count(self) -> None:
        SETTLEMENTS_WAITING.set(self._num_waiting)
