"""The memory of a replica that histories take while turns follow them. Arithmetic: nothing here waits."""

from collections import Counter, deque

from cluster.errors import Overloaded, TooManyRequests

RETRY_AFTER_S = 1.0


class HistorySpace:
    def __init__(self, most: int) -> None:
        """Sealed bytes. A tenant may have half of them, but for one history that is larger."""
        self._most = most
        self._held: Counter[str] = Counter()
        self._given_back: deque[tuple[str, int]] = deque()
        """By whichever thread was the last to refer to a history, and not yet taken off."""

    @property
    def num_held(self) -> int:
        while self._given_back:
            tenant, num_bytes = self._given_back.popleft()
            self._held[tenant] -= num_bytes
            if not self._held[tenant]:
                del self._held[tenant]
        return self._held.total()

    def hold(self, tenant: str, num_bytes: int) -> "HeldHistory":
        """Raises TooManyRequests where others of the tenant take its half, Overloaded where all of it is taken."""
        held = self.num_held
        of_tenant = self._held[tenant]
        if of_tenant and of_tenant + num_bytes > self._most // 2:
            raise TooManyRequests(
                f"turns that are in progress follow {of_tenant} bytes of your conversations: an API key may have "
                f"{self._most // 2} at a time in this replica",
                RETRY_AFTER_S,
            )
        if held and held + num_bytes > self._most:
            raise Overloaded("turns in long conversations take all the memory that there is for them", RETRY_AFTER_S)
        self._held[tenant] += num_bytes
        return HeldHistory(self._given_back, tenant, num_bytes)


class HeldHistory:
    """It is given back when nobody refers to this any more: what was read lives no longer, however its turn ends."""

    def __init__(self, given_back: deque[tuple[str, int]], tenant: str, num_bytes: int) -> None:
        self._given_back = given_back
        self._of = tenant, num_bytes

    def __del__(self) -> None:
        self._given_back.append(self._of)
