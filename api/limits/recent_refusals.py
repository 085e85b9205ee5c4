"""Limits that had no room a moment ago: a further request is refused at once, before any work is done for it. Pure."""

from typing import NamedTuple

from api.limits.budget import Denied
from api.limits.headers import refusal
from api.limits.limits import Amounts, Bucket, LimitKind
from cluster.errors import ServingError

REMEMBERED_S = 1.0
"""The longest time for which a limit without room is remembered, in seconds. Longer refuses requests for which there is
room again, because others have given back what they had reserved; shorter renders and screens more requests that are
refused then.
"""
MOST_REMEMBERED = 10_000
"""Limits that are remembered at a time, in number, of 1 kB or so each. More takes memory of the ingress; fewer forgets
limits sooner when very many scopes have no room.
"""
_AT_LEAST = Amounts(1, 1, 1)
"""What any request takes."""


class _Refused(NamedTuple):
    denied: Denied
    """Of the one limit."""
    at: float
    until: float


class RecentRefusals:
    """Of one replica. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._refused: dict[Bucket, _Refused] = {}
        """The oldest first."""

    def note(self, buckets: tuple[Bucket, ...], denied: Denied, now: float) -> None:
        """Remember the limit that refused a request, if it has no room for any request: if it is of requests per
        minute, or a budget of which nothing is left.
        """
        bucket, room = buckets[denied.binding], denied.rooms[denied.binding]
        wait_s = denied.wait_ms / 1000 if bucket.kind is LimitKind.REQUESTS else REMEMBERED_S
        is_shut = bucket.kind is LimitKind.REQUESTS or (bucket.kind.is_budget and room.remaining == 0)
        if not is_shut or wait_s <= 0:
            return
        self._refused.pop(bucket, None)
        if len(self._refused) >= MOST_REMEMBERED:
            del self._refused[next(iter(self._refused))]
        alone = Denied(denied.now_ms, [room], 0, denied.wait_ms)
        self._refused[bucket] = _Refused(alone, now, now + min(REMEMBERED_S, wait_s))

    def of(self, buckets: tuple[Bucket, ...], now: float) -> ServingError | None:
        """The error of a request that a remembered limit has no room for. None if there may be room."""
        for bucket in buckets:
            found = self._refused.get(bucket)
            if found is None:
                continue
            if now < found.until:
                wait_ms = max(1, found.denied.wait_ms - round(1000 * (now - found.at)))
                return refusal((bucket,), found.denied._replace(wait_ms=wait_ms), _AT_LEAST)
            del self._refused[bucket]
        return None
