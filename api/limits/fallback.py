"""What one replica grants while Redis is away: its share of each limit, by the model. Pure.

The shares of all replicas are no more than the limit. Of a budget, a replica has its share of what the ledger says is
left when Redis goes away; without a ledger, a share of the whole budget.

Each tenant has counters of its own, whose number is bounded: what one tenant asks takes no room of another one.
"""

from collections.abc import Mapping

from api.limits.budget import BudgetModel, Denied, Entry, Granted, Unseeded
from api.limits.counters import MINUTE_MS, window_of
from api.limits.limits import Amounts, Bucket, LimitKind

MOST_END_USERS = 1000
"""End users of a tenant who have counters of their own in a replica. Those beyond count together, as one. More takes
memory, some 2 kB each; fewer makes end users of large tenants share a limit while Redis is away.
"""
MOST_TENANTS = 10_000
"""Tenants for which a replica counts. More takes memory, some 10 kB each and what their end users take; fewer refuses
tenants that come later in the same outage of Redis.
"""


class _TenantShares:
    def __init__(self, num_replicas: int) -> None:
        self.model = BudgetModel(MOST_END_USERS)
        self._num_replicas = num_replicas
        self._spent: dict[tuple[str, LimitKind], tuple[int, int]] = {}
        """The day or month in which the ledger said what was spent of a budget, and what it said."""

    def forget_spent(self) -> None:
        if self._spent:
            self.model.forget_budgets()
            self._spent.clear()

    def reserve(
        self, entry: Entry, lifetime_ms: int, now_ms: int, seeds: Mapping[int, int] | None
    ) -> Granted | Denied | Unseeded | None:
        entry = self.model.counted(entry, now_ms)
        for index, spent in (seeds or {}).items():
            bucket = entry.buckets[index]
            self._spent.setdefault((bucket.name, bucket.kind), (window_of(bucket.kind, now_ms), spent))
        shared = self.shared(entry, now_ms)
        limits = [bucket for bucket in shared.buckets if not bucket.kind.is_budget]
        if any(entry.reserved.of(bucket.kind) > bucket.capacity for bucket in limits):
            return None
        return self.model.reserve(shared, lifetime_ms, now_ms, seeds)

    def shared(self, entry: Entry, now_ms: int) -> Entry:
        entry = self.model.counted(entry, now_ms)
        return entry._replace(buckets=tuple(self._share_of(bucket, now_ms) for bucket in entry.buckets))

    def _share_of(self, bucket: Bucket, now_ms: int) -> Bucket:
        spent = 0
        if bucket.kind.is_budget:
            window, said = self._spent.get((bucket.name, bucket.kind), (0, 0))
            spent = said if window == window_of(bucket.kind, now_ms) else 0
        if spent < bucket.capacity:
            return bucket._replace(capacity=spent + (bucket.capacity - spent) // self._num_replicas)
        return bucket


class LocalShares:
    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._tenants: dict[str, _TenantShares] = {}
        self._used_at_ms = 0

    def begin(self, now_ms: int) -> None:
        """Redis has gone away. What the ledger said in an earlier outage is out of date. Shares that were used just now
        still count, so that a Redis that comes and goes does not renew them.
        """
        if now_ms - self._used_at_ms > 2 * MINUTE_MS:
            self._tenants.clear()
        for shares in self._tenants.values():
            shares.forget_spent()

    def reserve(
        self, tenant: str, entry: Entry, lifetime_ms: int, now_ms: int, seeds: Mapping[int, int] | None
    ) -> Granted | Denied | Unseeded | None:
        """As BudgetModel.reserve. None if the request is larger than a share, or if there are too many tenants."""
        self._used_at_ms = now_ms
        if tenant not in self._tenants and len(self._tenants) >= MOST_TENANTS:
            return None
        return self._shares_of(tenant).reserve(entry, lifetime_ms, now_ms, seeds)

    def renew(self, tenant: str, entry: Entry, lifetime_ms: int, now_ms: int) -> None:
        shares = self._shares_of(tenant)
        shares.model.renew(shares.shared(entry, now_ms), lifetime_ms, now_ms)

    def settle(self, tenant: str, entry: Entry, actual: Amounts, now_ms: int) -> None:
        shares = self._shares_of(tenant)
        shares.model.settle(shares.shared(entry, now_ms), actual, now_ms, now_ms)

    def _shares_of(self, tenant: str) -> _TenantShares:
        """Also of a tenant whose requests still run although its shares were forgotten."""
        if tenant not in self._tenants:
            self._tenants[tenant] = _TenantShares(self._num_replicas)
        return self._tenants[tenant]
