"""Fair shares of a scarce resource, such as connections. No tenant waits for a tenant that holds more than itself.
It waits with asyncio, and has no clock, input or output.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    def __init__(self, number: int, most_of_one: int) -> None:
        """`number`: the units of the resource. `most_of_one`: the units that one tenant may hold at a time, even while
        no other tenant waits: a tenant that comes next would have to wait for them.
        """
        self._num_free = number
        self._most_of_one = most_of_one
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._num_served = 0
        self._last: dict[str, int] = {}
        """When each tenant that waits or holds a unit was last served. Of tenants that hold equally many, the one that
        was not served for the longest time comes next.
        """

    @asynccontextmanager
    async def one(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a unit, without a time-out, and hold it in the block."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def _take(self, tenant: str) -> None:
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(given)
        self._last.setdefault(tenant, 0)
        self._serve()
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self._give_back(tenant)
            else:
                self._withdraw(tenant, given)
            raise

    def _give_back(self, tenant: str) -> None:
        self._num_free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._serve()
        self._forget(tenant)

    def _serve(self) -> None:
        while self._num_free:
            entitled = [tenant for tenant in self._waiting if self._held[tenant] < self._most_of_one]
            if not entitled:
                return
            tenant = min(entitled, key=lambda one: (self._held[one], self._last[one]))
            given = self._waiting[tenant].popleft()
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            if not given.cancelled():
                self._num_free -= 1
                self._held[tenant] += 1
                self._num_served += 1
                self._last[tenant] = self._num_served
                given.set_result(None)

    def _withdraw(self, tenant: str, given: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(tenant)
        if waiting is not None and given in waiting:
            waiting.remove(given)
            if not waiting:
                del self._waiting[tenant]
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        if tenant not in self._waiting and tenant not in self._held:
            self._last.pop(tenant, None)
