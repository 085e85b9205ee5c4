"""Accounting of the memory that the histories of running turns take in a replica. Nothing here waits."""

from collections import Counter, deque

from api.wire.errors import FULL_REPLICA_RETRY_S
from cluster.errors import Overloaded, TooManyRequests


class HistorySpace:
    def __init__(self, most: int) -> None:
        """`most`: the bytes that histories may take, counted as they are sealed. A tenant may hold half of them, or a
        single history of any size.
        """
        self._most = most
        self._held: Counter[str] = Counter()
        self._given_back: deque[tuple[str, int]] = deque()
        """Tenants and bytes of histories that are freed, and not subtracted yet. `HeldHistory.__del__` appends here
        from any thread.
        """

    @property
    def num_held(self) -> int:
        while self._given_back:
            tenant, num_bytes = self._given_back.popleft()
            self._held[tenant] -= num_bytes
            if not self._held[tenant]:
                del self._held[tenant]
        return self._held.total()

    def hold(self, tenant: str, num_bytes: int) -> "HeldHistory":
        """Count a history. Raises TooManyRequests if the tenant has no room in its half, Overloaded if the replica has
        no room.
        """
        held = self.num_held
        of_tenant = self._held[tenant]
        if of_tenant and of_tenant + num_bytes > self._most // 2:
            raise TooManyRequests(
                f"the histories of this tenant's running turns have {of_tenant} bytes: a tenant may have "
                f"{self._most // 2} bytes at a time in this replica",
                FULL_REPLICA_RETRY_S,
            )
        if held and held + num_bytes > self._most:
            raise Overloaded("the histories of running turns take all the memory for histories", FULL_REPLICA_RETRY_S)
        self._held[tenant] += num_bytes
        return HeldHistory(self._given_back, tenant, num_bytes)


class HeldHistory:
    """The memory of one history. Garbage collection gives it back, so that no way in which a turn ends can leak it."""

    def __init__(self, given_back: deque[tuple[str, int]], tenant: str, num_bytes: int) -> None:
        self._given_back = given_back
        self._of = tenant, num_bytes

    def __del__(self) -> None:
        self._given_back.append(self._of)
