"""Which tenants use more than their share: engine time that was placed for each, forgetting the old.

Counted in predicted seconds of engines rather than in requests, so that many short prompts and one long one weigh what
they cost.
"""

from math import log
from typing import Final, final

HALF_LIFE_S: Final = 30.0
MAX_TENANTS: Final = 10_000
LARGEST_EXCESS: Final = 4.0


@final
class TenantShares:
    __slots__ = ("_since", "_total_s", "_used_s")

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}
        self._total_s = 0.0
        self._since = 0.0
        """When all figures were last aged."""

    def charge(self, tenant: str, engine_s: float, now: float) -> None:
        self._age(now)
        if tenant not in self._used_s and len(self._used_s) >= MAX_TENANTS:
            least = min(self._used_s, key=self._used_s.__getitem__)
            self._total_s -= self._used_s.pop(least)
        self._used_s[tenant] = self._used_s.get(tenant, 0.0) + engine_s
        self._total_s += engine_s

    def excess(self, tenant: str, now: float) -> float:
        """What a tenant has used lately, as a multiple of an equal share; at most LARGEST_EXCESS."""
        self._age(now)
        if self._total_s <= 0.0:
            return 1.0
        share = self._used_s.get(tenant, 0.0) / self._total_s
        num_tenants = len(self._used_s) + (tenant not in self._used_s)
        return min(LARGEST_EXCESS, share * num_tenants)

    def seconds_per_s(self) -> float:
        """Engine time that was placed lately, per second."""
        return self._total_s * log(2) / HALF_LIFE_S

    def _age(self, now: float) -> None:
        age_s = now - self._since
        if age_s < HALF_LIFE_S / 10:
            return
        factor = 0.5 ** (age_s / HALF_LIFE_S)
        floor = 0.001 * self._total_s * factor
        self._used_s = {t: used * factor for t, used in self._used_s.items() if used * factor > floor}
        self._total_s = sum(self._used_s.values())
        self._since = now
