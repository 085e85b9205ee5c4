"""Counts what runs at the same time against a limit in total and, where there is one, a limit for each tenant. A full
count refuses: nothing waits here.

The limits are `max_ongoing_requests` and `max_background_responses` with `max_background_responses_per_tenant`
(cluster/config/ingress.py). Only background responses have a limit per tenant.
"""

from api.wire.errors import FULL_REPLICA_RETRY_S
from cluster.errors import Overloaded

UNITS = "baton.units"
"""Key in the ASGI scope of a request. The value is the `Units` that the request holds of the replica's capacity."""


class Capacity:
    def __init__(self, most: int, most_per_tenant: int | None = None) -> None:
        self.most = most
        self.most_per_tenant = most_per_tenant
        self.num_held = 0
        self.num_given_back = 0
        """Units that were given back since the start of the process. The number stands still while nothing ends."""
        self._by_tenant: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        return self.num_held >= self.most

    def acquire(self, number: int = 1, tenant: str = "") -> "Units | None":
        """Units for a new holder. None if the limits leave fewer than `number` free."""
        units = Units(self, tenant)
        return units if units.grow(number) else None

    def of_tenant(self, tenant: str) -> int:
        return self._by_tenant.get(tenant, 0)

    def _take(self, number: int, tenant: str) -> bool:
        of_tenant = self.of_tenant(tenant) + number
        if self.num_held + number > self.most:
            return False
        if self.most_per_tenant is not None:
            if of_tenant > self.most_per_tenant:
                return False
            self._by_tenant[tenant] = of_tenant
        self.num_held += number
        return True

    def _give_back(self, number: int, tenant: str) -> None:
        self.num_held -= number
        self.num_given_back += number
        if self.most_per_tenant is not None:
            left = self._by_tenant[tenant] - number
            if left:
                self._by_tenant[tenant] = left
            else:
                del self._by_tenant[tenant]


def full(capacity: Capacity) -> Overloaded:
    return Overloaded(
        f"this ingress replica has {capacity.num_held} open sequences, and the limit is {capacity.most}",
        FULL_REPLICA_RETRY_S,
    )


class Standstill:
    """Measures for how long a full capacity has given nothing back. It notices changes only when it is read."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._since: float | None = None
        self._num_given_back = 0

    def lasts_s(self, now: float) -> float:
        """Seconds since the first reading that found the capacity in its present standstill. 0 without a standstill."""
        capacity = self._capacity
        if not capacity.is_full:
            self._since = None
        elif self._since is None or capacity.num_given_back != self._num_given_back:
            self._since, self._num_given_back = now, capacity.num_given_back
        return 0.0 if self._since is None else now - self._since


class Units:
    """The units of a capacity that one request holds. They are given back when all holders have released them."""

    def __init__(self, capacity: Capacity, tenant: str) -> None:
        self.capacity = capacity
        self._tenant = tenant
        self._number = 0
        self._num_holders = 1

    def grow(self, number: int) -> bool:
        """Takes more units. False, and takes nothing, if fewer than `number` are free."""
        if not self.capacity._take(number, self._tenant):
            return False
        self._number += number
        return True

    def share(self) -> "Units":
        """Adds a holder, which has to release the units, too."""
        self._num_holders += 1
        return self

    def release(self) -> None:
        """Each holder calls this once."""
        self._num_holders -= 1
        if self._num_holders == 0:
            self.capacity._give_back(self._number, self._tenant)
