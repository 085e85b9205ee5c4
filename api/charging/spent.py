"""What scopes have spent of their budgets, as the ledger knows it."""

from collections.abc import Callable

from api.limits.limits import Amounts, LimitScope, ScopeKind
from api.metering.usage import storable
from api.state.postgres.ledger.usage_sums import UsageSums


class LedgerSpent:
    """The `SpentPort` of api/limits/seeds.py."""

    def __init__(self, sums: Callable[[], UsageSums]) -> None:
        """`sums`: raises StateUnavailable before PostgreSQL is reached."""
        self._sums = sums

    async def spent(self, tenant: str, scope: LimitScope, start_ms: int, end_ms: int) -> Amounts:
        """Of a day or a month. Raises StateUnavailable."""
        scope_id = "" if scope.kind is ScopeKind.TENANT else storable(scope.id)
        found = await self._sums().spent_by(tenant, scope.kind, scope_id, start_ms / 1000, end_ms / 1000)
        return Amounts(0, found.tokens, found.cost_micros)
