"""Which end users of a tenant have counters of their own, as reserve.lua decides it, too. Pure.

The names of end users come from clients. So their number is bounded: of those that come when there are too many, all
count together, as one.
"""

from collections.abc import Callable, Set

from api.limits.counters import DAY_MS, MINUTE_MS, window_end_ms
from api.limits.limits import Bucket, LimitKind, others_of

MOST_END_USERS = 100_000
"""End users of a tenant that have counters of their own in Redis at a time. More takes memory of Redis, some 500 bytes
each; fewer makes end users of large tenants share a limit.
"""


class EndUsers:
    def __init__(self, most: int, forget: Callable[[Set[str]], None]) -> None:
        """`forget`: gets names of scopes whose counters say nothing any more."""
        self._most = most
        self._forget = forget
        self._ends_ms: dict[str, int] = {}
        """When the counters of each end user end, by name of the scope."""
        self._first_end_ms = 0
        """No counters end before this time."""

    def counted(self, buckets: tuple[Bucket, ...], now_ms: int) -> tuple[Bucket, ...]:
        """With the names under which they count."""
        ends_ms: dict[str, int] = {}
        for bucket in buckets:
            if bucket.kind is not LimitKind.CONCURRENT and others_of(bucket.name):
                ends_ms[bucket.name] = max(ends_ms.get(bucket.name, 0), _end_ms(bucket.kind, now_ms))
        beyond = {name for name, end_ms in ends_ms.items() if not self._has_counters(name, end_ms, now_ms)}
        return tuple(_of_others(bucket) if bucket.name in beyond else bucket for bucket in buckets)

    def _has_counters(self, name: str, end_ms: int, now_ms: int) -> bool:
        """Whether the end user has counters of its own, which it keeps until `end_ms` at least."""
        if name not in self._ends_ms and len(self._ends_ms) >= self._most:
            self._end(now_ms)
            if len(self._ends_ms) >= self._most:
                return False
        self._ends_ms[name] = max(self._ends_ms.get(name, 0), end_ms)
        return True

    def _end(self, now_ms: int) -> None:
        if now_ms < self._first_end_ms:
            return
        over = {name for name, end_ms in self._ends_ms.items() if end_ms <= now_ms}
        for name in over:
            del self._ends_ms[name]
        self._first_end_ms = min(self._ends_ms.values(), default=0)
        self._forget(over)


def _end_ms(kind: LimitKind, now_ms: int) -> int:
    """When a counter that is used now says nothing any more."""
    return now_ms + 2 * MINUTE_MS if kind.is_per_minute else window_end_ms(kind, now_ms) + DAY_MS


def _of_others(bucket: Bucket) -> Bucket:
    name = others_of(bucket.name)
    assert name is not None
    return bucket._replace(name=name)
