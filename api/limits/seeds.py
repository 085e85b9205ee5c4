"""What was spent of budgets that Redis does not know, as the ledger has it: a sum over a day or a month. Requests that
need the same sum share a question, few questions are open at a time, and one of each tenant.
"""

import asyncio
from typing import Protocol

from api.limits.counters import window_end_ms, window_start_ms
from api.limits.limits import Amounts, Bucket, LimitScope
from api.state.postgres.fair_shares import Shares

ASKED_AT_ONCE = 3
"""Questions of a replica to the ledger at a time. More takes more of the connections of the stores; fewer lets tenants
wait for each other after a restart of Redis.
"""
MOST_OF_TENANT = 1
"""Questions of one tenant at a time. With more, tenants that make up end users keep others waiting."""
PATIENCE_S = 6.0
"""How long a request waits for what was spent, in seconds, its turn included. Shorter refuses requests while
PostgreSQL is slow, which ends a sum after 5 s; longer keeps clients waiting that are refused anyway.
"""


class SpentPort(Protocol):
    """The ledger of what was used."""

    async def spent(self, tenant: str, scope: LimitScope, start_ms: int, end_ms: int) -> Amounts:
        """Tokens and micro-units of cost of a scope in a day or a month. Raises StateUnavailable."""


class Seeds:
    def __init__(self, ledger: SpentPort) -> None:
        self._ledger = ledger
        self._shares = Shares(ASKED_AT_ONCE, MOST_OF_TENANT)
        self._asked: dict[tuple[str, int, int], asyncio.Task[Amounts]] = {}
        """The questions that are open, by name of the scope, and begin and end of the time."""

    async def spent(self, tenant: str, bucket: Bucket, now_ms: int) -> int:
        """What was spent of a budget in its current day or month. Raises StateUnavailable, TimeoutError."""
        time = window_start_ms(bucket.kind, now_ms), window_end_ms(bucket.kind, now_ms)
        place = (bucket.name, *time)
        task = self._asked.get(place)
        if task is None:
            task = self._asked[place] = asyncio.create_task(self._ask(tenant, bucket.scope, *time))
            task.add_done_callback(lambda _: self._asked.pop(place, None))
        return (await asyncio.shield(task)).of(bucket.kind)

    async def close(self) -> None:
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, tenant: str, scope: LimitScope, start_ms: int, end_ms: int) -> Amounts:
        async with asyncio.timeout(PATIENCE_S), self._shares.one(tenant):
            return await self._ledger.spent(tenant, scope, start_ms, end_ms)
