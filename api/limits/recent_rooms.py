"""Limits that had ample room a moment ago: their requests may begin before Redis has granted them. Pure."""

from collections.abc import Sequence

from api.limits.counters import Room
from api.limits.limits import Amounts, Bucket

REMEMBERED_S = 1.0
"""Time for which the room of a limit is believed, in seconds. Longer believes what other replicas have given out since;
shorter has requests that come rarely wait for Redis.
"""
AMPLE = 0.5
"""The part of a limit that must be left after a request which begins early. More has more requests wait for Redis; less
computes more prompts of requests that are refused then.
"""
MOST_REMEMBERED = 10_000
"""Limits that are remembered at a time, in number, of 0.3 kB or so each. More takes memory of the ingress; fewer
forgets limits sooner when very many scopes are in use.
"""


class RecentRooms:
    """Of one replica. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._rooms: dict[Bucket, tuple[int, float]] = {}
        """What is left of a limit, and until when this is believed. The oldest first."""

    def note(self, buckets: tuple[Bucket, ...], rooms: Sequence[Room], now: float) -> None:
        """Redis has granted a request of these limits, and has said what they have left."""
        for bucket, room in zip(buckets, rooms, strict=True):
            self._rooms.pop(bucket, None)
            if len(self._rooms) >= MOST_REMEMBERED:
                del self._rooms[next(iter(self._rooms))]
            self._rooms[bucket] = (room.remaining, now + REMEMBERED_S)

    def take(self, buckets: tuple[Bucket, ...], asked: Amounts, now: float) -> bool:
        """Whether all limits are known to have ample room. If so, the request has taken its part of what is known."""
        left: list[tuple[Bucket, int, float]] = []
        for bucket in buckets:
            remaining, until = self._rooms.get(bucket, (0, now))
            remaining -= asked.of(bucket.kind)
            if now >= until or remaining < AMPLE * bucket.capacity:
                return False
            left.append((bucket, remaining, until))
        for bucket, remaining, until in left:
            self._rooms[bucket] = (remaining, until)
        return True
