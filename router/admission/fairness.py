"""Which tenants use more than their share of engine time. Old use counts less than new use.

Use is counted in predicted seconds of engines and not in requests, so that many short prompts and one long prompt count
what they cost. The fair share of a tenant is proportional to its weight. Only tenants with recent use have a share:
what an idle tenant leaves is divided among the others by their weights.
"""

from math import log
from typing import Final, final

from router.prediction.decaying import remaining

HALF_LIFE_S: Final = 30.0
"""Age at which engine time counts half, in seconds. Longer delays a tenant for use that it has ended; shorter lets a
tenant that pauses now and then take more than its share.
"""
MAX_TENANTS: Final = 10_000
"""Tenants that are remembered. More cost memory and time for each ageing; with fewer, the least users among many
tenants are forgotten and count as new.
"""
LARGEST_EXCESS: Final = 4.0
"""Largest excess that counts. Higher lets one tenant's requests wait much longer; lower treats a heavy user like a
light one.
"""
_WINDOW_S: Final = HALF_LIFE_S / log(2)
_AGEING_S: Final = HALF_LIFE_S / 10
"""Time after which all figures are aged, in seconds. Longer counts old use for too much; shorter costs CPU for each
tenant.
"""
_LEAST_SHARE: Final = 0.001
"""Share of all engine time up to which a tenant is forgotten. Higher forgets tenants that still have requests; lower
remembers tenants that have gone.
"""


@final
class TenantShares:
    __slots__ = ("_since", "_total_s", "_total_weight", "_used_s", "_weights")

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}
        self._total_s = 0.0
        self._weights: dict[str, float] = {}
        """Of the tenants in `_used_s`, as their last requests had them."""
        self._total_weight = 0.0
        self._since = 0.0
        """Time at which all figures were aged."""

    def charge(self, tenant: str, weight: float, engine_s: float, now: float) -> None:
        """`weight`: of the tenant, larger than 0."""
        self._age(now)
        if tenant not in self._used_s and len(self._used_s) >= MAX_TENANTS:
            least = min(self._used_s, key=self._used_s.__getitem__)
            self._total_s -= self._used_s.pop(least)
            self._total_weight -= self._weights.pop(least)
        self._total_weight += weight - self._weights.get(tenant, 0.0)
        self._weights[tenant] = weight
        self._used_s[tenant] = self._used_s.get(tenant, 0.0) + engine_s
        self._total_s += engine_s

    def excess(self, tenant: str, weight: float, now: float) -> float:
        """Use of a tenant lately, as a multiple of its fair share; at most LARGEST_EXCESS."""
        self._age(now)
        if self._total_s <= 0.0:
            return 1.0
        share = self._used_s.get(tenant, 0.0) / self._total_s
        total_weight = self._total_weight + weight - self._weights.get(tenant, 0.0)
        return min(LARGEST_EXCESS, share * total_weight / weight)

    def seconds_per_s(self) -> float:
        """Engine seconds per second that were placed lately."""
        return self._total_s / _WINDOW_S

    def _age(self, now: float) -> None:
        age_s = now - self._since
        if age_s < _AGEING_S:
            return
        factor = remaining(age_s, _WINDOW_S)
        floor = _LEAST_SHARE * self._total_s * factor
        self._used_s = {t: used * factor for t, used in self._used_s.items() if used * factor > floor}
        self._total_s = sum(self._used_s.values())
        self._weights = {tenant: self._weights[tenant] for tenant in self._used_s}
        self._total_weight = sum(self._weights.values())
        self._since = now
