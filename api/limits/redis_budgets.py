"""The counters of budgets in Redis, for the reconciliation (api/metering/reconciliation.py)."""

import logging
import re
import time
from collections.abc import Callable, Sequence
from importlib.resources import files

from api.limits.counters import MOST_COUNTED, window_end_ms, window_of, window_start_ms
from api.limits.limits import LimitKind, LimitScope, ScopeKind, scope_name, tenant_prefix
from api.metering.differences import BudgetScope
from api.state.redis.client import RedisClient, RedisScript

logger = logging.getLogger("baton.limits")

MOST_OPEN = 2000
"""Requests of a tenant that may run while its budgets are read. More keeps Redis from other calls for longer, by some
3 us each; fewer leaves the budgets of busy tenants uncorrected until they are less busy.
"""
FOUND_AT_ONCE = 500
"""Names that one step of the search looks at. More delays other calls of Redis; fewer takes more round trips."""
MOST_SCOPES = 100_000
"""Scopes that one look reads. More takes memory; fewer leaves budgets of further scopes uncorrected."""
_NAME = re.compile(r"baton:limits:\{([^{}]+)\}:((key|project|tenant|end_user|model):.+)")

_SPANS = {kind.span: kind for kind in LimitKind if kind.is_budget}
"""The times for which budgets count, each with one of these budgets."""


class RedisBudgets:
    def __init__(
        self,
        redis: RedisClient,
        hashed: Callable[[str], str],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`hashed`: as in `scope_name`."""
        constants = f"local MOST_COUNTED, MOST_OPEN = {MOST_COUNTED}, {MOST_OPEN}\n{_budgets_in_lua()}"
        self._script = RedisScript.of(constants + files(__package__).joinpath("budgets.lua").read_text())
        self._redis = redis
        self._hashed = hashed
        self._now_ms = now_ms

    def scope_id(self, kind: str, id: str) -> str:
        """The end of the scope's name in Redis. `id`: empty for the tenant, whose id is another column."""
        return f"{kind}:" if kind == ScopeKind.TENANT else scope_name(LimitScope(ScopeKind(kind), id), self._hashed)

    async def add(self, scope: BudgetScope, amount: int) -> bool:
        """Add to a counter, in one step with what requests add meanwhile. Nothing is added to the counter of another
        day or month. False while Redis is away.
        """
        kind = LimitKind(scope.counter)
        window = window_of(kind, round(scope.start * 1000))
        prefix = tenant_prefix(scope.tenant)
        name = prefix + (scope.scope_id + scope.tenant if scope.kind == ScopeKind.TENANT else scope.scope_id)
        keys = [f"{prefix}open", name]
        return await self._redis.run_script(self._script, keys, "add", kind.value, window, amount) is not None

    async def scopes(self) -> dict[str, list[str]] | None:
        """The names of the scopes of each tenant. None while Redis is away."""
        names: dict[str, dict[str, None]] = {}  # the search may find a name twice
        cursor, number = b"0", 0
        while number < MOST_SCOPES:
            answer = await self._redis.run(
                ("SCAN", cursor, "MATCH", "baton:limits:*", "COUNT", FOUND_AT_ONCE, "TYPE", "hash")
            )
            if answer is None:
                return None
            cursor, found = answer[0]
            for name in found:
                if match := _NAME.fullmatch(name.decode()):
                    names.setdefault(match[1], {})[match[2]] = None
                    number += 1
            if int(cursor) == 0:
                break
        else:
            logger.error("budgets of more than %d scopes are not compared with the ledger", MOST_SCOPES)
        return {tenant: list(of_tenant) for tenant, of_tenant in names.items()}

    async def settled(self, tenant: str, scopes: Sequence[str]) -> dict[BudgetScope, int] | None:
        """What each budget of the current days and months has used, without what running requests have reserved.
        `scopes`: as in `scopes`. None while Redis is away.
        """
        now_ms, prefix = self._now_ms(), tenant_prefix(tenant)
        found: dict[BudgetScope, int] = {}
        for first in range(0, len(scopes), FOUND_AT_ONCE):
            some = scopes[first : first + FOUND_AT_ONCE]
            starts = [window_start_ms(kind, now_ms) for kind in _SPANS.values()]
            keys = [f"{prefix}open", *(prefix + scope for scope in some)]
            answer = await self._redis.run_script(self._script, keys, "settled", *starts)
            if answer is None:
                return None
            for place, name, window, amount in answer:
                kind = LimitKind(name.decode())
                if window == window_of(kind, now_ms):
                    found[_budget(tenant, some[place - 1], kind, now_ms)] = amount
        return found


def _budgets_in_lua() -> str:
    """What the script has to know of each kind of budget."""
    first_start = 2  # the arguments before it: the operation
    places = {span: place for place, span in enumerate(_SPANS, first_start)}
    kinds = [
        f"{kind.value} = {{measure = '{kind.measure.name}', start = {places[kind.span]}}}"
        for kind in LimitKind
        if kind.is_budget
    ]
    return f"local BUDGETS = {{{', '.join(kinds)}}}\n"


def _budget(tenant: str, scope: str, kind: LimitKind, now_ms: int) -> BudgetScope:
    scope_kind = scope.partition(":")[0]
    return BudgetScope(
        scope_kind,
        tenant,
        f"{scope_kind}:" if scope_kind == ScopeKind.TENANT else scope,
        kind.value,
        kind.is_cost,
        window_start_ms(kind, now_ms) / 1000,
        window_end_ms(kind, now_ms) / 1000,
    )
