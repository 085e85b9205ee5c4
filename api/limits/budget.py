"""The arithmetic of reserve, settle, renew and expiry, of one tenant: the reference that reserve.lua is compared with,
and what a replica counts with while Redis is away. Pure.

counters.py has the counters of single limits, and the units.
"""

import heapq
from collections import deque
from collections.abc import Mapping, Set
from typing import NamedTuple

from api.limits.counters import (
    MINUTE_MS,
    MOST_COUNTED,
    BudgetWindow,
    RateBucket,
    Room,
    window_end_ms,
    window_of,
)
from api.limits.end_users import MOST_END_USERS, EndUsers
from api.limits.limits import Amounts, Bucket, LimitKind

BUSY_MS = 1000
"""Wait that a request is told which finds all concurrent requests of a scope open, or a budget reserved by open ones,
in milliseconds. Nobody knows when one of them ends. A longer wait leaves room unused; a shorter one brings more
requests that are refused again.
"""
KEPT_MS = 900_000
"""Time after the end of a request in which its settlement is accepted, and for which Redis remembers it, in
milliseconds. Longer takes memory of Redis, some 150 bytes for each request; shorter loses the settlements that replicas
keep during a long outage of Redis.
"""
SWEPT_AT_ONCE = 50
"""Expired reservations that one call gives back. More makes a call slower, by some 20 us each; fewer gives back later
what many lost requests had reserved.
"""
OPEN_KEPT_MS = 40 * 86_400_000
"""Time for which Redis keeps a reservation that has expired, until a call of its tenant gives it back, in milliseconds.
Longer takes memory of Redis; shorter than a month leaves what was reserved in the month's budget of a tenant that is
seldom there.
"""
MOST_SETTLED = 100_000
"""Settlements of a tenant that are remembered, the last ones, so that none counts twice. More takes memory of Redis,
some 150 bytes each; fewer counts some twice whose answer was lost if the tenant has many requests.
"""


class Granted(NamedTuple):
    now_ms: int
    rooms: list[Room]
    """Of each bucket, with what was granted taken off."""


class Denied(NamedTuple):
    now_ms: int
    rooms: list[Room]
    binding: int
    """Index of the bucket that has no room: a budget if one has none, else the one with the longest wait."""
    wait_ms: int
    """Time until that bucket has room. 0 for a request that is larger than the bucket."""


class Unseeded(NamedTuple):
    """Nothing is reserved: what has been spent of these budgets is not known here, and the ledger knows it. All other
    limits have room.
    """

    now_ms: int
    buckets: list[int]
    """Indexes of the budgets."""


class Entry(NamedTuple):
    """What is said of a reservation with each call: enough to count it where it is not known."""

    id: str
    taken_at_ms: int
    buckets: tuple[Bucket, ...]
    reserved: Amounts


class _Record:
    __slots__ = ("buckets", "expires_at_ms", "reserved", "taken_at_ms")

    def __init__(self, entry: Entry, now_ms: int, expires_at_ms: int) -> None:
        self.buckets = entry.buckets
        self.reserved = entry.reserved
        self.taken_at_ms = now_ms
        self.expires_at_ms = expires_at_ms


class BudgetModel:
    """All buckets and reservations of a tenant."""

    def __init__(self, most_end_users: int = MOST_END_USERS) -> None:
        self._end_users = EndUsers(most_end_users, self._forget)
        self._rates: dict[tuple[str, LimitKind], RateBucket] = {}
        self._windows: dict[tuple[str, LimitKind], BudgetWindow] = {}
        self._open: dict[str, dict[str, int]] = {}
        """The ends of the open reservations, by id, by name of the scope."""
        self._records: dict[str, _Record] = {}
        self._expiries: list[tuple[int, str]] = []
        """A heap. Entries that differ from the record's are old."""
        self._settled: dict[str, int] = {}
        """When each settlement may be forgotten, by id."""
        self._settled_in_order: deque[str] = deque()

    def forget_budgets(self) -> None:
        """What is spent has to be asked of the ledger again."""
        self._windows.clear()

    def reserve(
        self, entry: Entry, lifetime_ms: int, now_ms: int, seeds: Mapping[int, int] | None = None
    ) -> Granted | Denied | Unseeded:
        """All buckets grant the request, or none. `seeds`: what the ledger says was spent, by index of the bucket, if
        there is a ledger. None without one: unknown budgets then count from 0.

        A request that was given up before its reservation came takes nothing, and one that has reserved takes nothing
        more.
        """
        self._sweep(now_ms)
        entry = self.counted(entry, now_ms)
        if entry.id in self._settled:
            return Denied(now_ms, self._rooms(entry, now_ms), 0, 0)
        if entry.id in self._records:
            return Granted(now_ms, self._rooms(entry, now_ms))
        unseeded = [] if seeds is None else self._unseeded(entry, seeds, now_ms)
        for bucket in entry.buckets:
            if bucket.kind.is_per_minute:
                self._rate(bucket, now_ms).capacity = bucket.capacity
        binding, binding_wait_ms, binding_rank = -1, 0, 0
        for index, bucket in enumerate(entry.buckets):
            if index not in unseeded:
                wait_ms = self._wait_ms(bucket, entry.reserved.of(bucket.kind), now_ms)
                rank = _rank(bucket, entry.reserved, wait_ms)
                if rank > binding_rank:
                    binding, binding_wait_ms, binding_rank = index, wait_ms, rank
        if binding >= 0:
            is_larger = entry.reserved.of(entry.buckets[binding].kind) > entry.buckets[binding].capacity
            return Denied(now_ms, self._rooms(entry, now_ms), binding, 0 if is_larger else binding_wait_ms)
        if unseeded:
            return Unseeded(now_ms, unseeded)
        self._record(entry, now_ms, lifetime_ms)
        return Granted(now_ms, self._rooms(entry, now_ms))

    def counted(self, entry: Entry, now_ms: int) -> Entry:
        """With the names under which its buckets count here."""
        return entry._replace(buckets=self._end_users.counted(entry.buckets, now_ms))

    def renew(self, entry: Entry, lifetime_ms: int, now_ms: int) -> None:
        """A reservation that is not known is counted without a check, because its request runs: as an open request and
        in its budgets, not in the limits per minute, which have mostly got back by now what it took.
        """
        self._sweep(now_ms)
        if entry.id in self._settled:
            return
        record = self._records.get(entry.id)
        if record is None:
            entry = self.counted(entry, now_ms)
            lasting = tuple(bucket for bucket in entry.buckets if not bucket.kind.is_per_minute)
            self._record(entry._replace(buckets=lasting), now_ms, lifetime_ms)
        else:
            record.expires_at_ms = now_ms + lifetime_ms
            self._enter(entry.id, record)

    def settle(self, entry: Entry, actual: Amounts, closed_at_ms: int, now_ms: int) -> bool:
        """Count `actual` instead of what was reserved. False if it was settled before, or too long ago."""
        self._sweep(now_ms)
        if entry.id in self._settled:
            return False
        record = self._records.pop(entry.id, None)
        if record is None and now_ms - closed_at_ms > KEPT_MS:
            return False
        self._settled[entry.id] = now_ms + 2 * KEPT_MS
        self._settled_in_order.append(entry.id)
        if len(self._settled) > MOST_SETTLED:
            del self._settled[self._settled_in_order.popleft()]
        if record is not None:
            self._settle_record(entry.id, record, actual, closed_at_ms, now_ms)
            return True
        for bucket in self.counted(entry, now_ms).buckets:
            amount = actual.of(bucket.kind)
            if bucket.kind.is_per_minute:
                rate = self._rate(bucket, now_ms)
                rate.charge(amount * MINUTE_MS - rate.capacity * max(0, now_ms - closed_at_ms))
            elif bucket.kind.is_budget:
                window = self._window(bucket, now_ms)
                if window.id == window_of(bucket.kind, entry.taken_at_ms) and closed_at_ms > window.seeded_at_ms:
                    window.add(amount)
        return True

    def _settle_record(self, id: str, record: _Record, actual: Amounts | None, closed_at_ms: int, now_ms: int) -> None:
        """`actual`: None gives all back."""
        for bucket in record.buckets:
            reserved = record.reserved.of(bucket.kind)
            amount = 0 if actual is None else actual.of(bucket.kind)
            if bucket.kind.is_per_minute:
                rate = self._rate(bucket, now_ms)
                rate.charge((amount - reserved) * MINUTE_MS)
                rate.give_back((reserved - amount) * MINUTE_MS, record.taken_at_ms)
            elif bucket.kind is LimitKind.CONCURRENT:
                self._leave(bucket.name, id)
            else:
                window = self._window(bucket, now_ms)
                if window.id != window_of(bucket.kind, record.taken_at_ms):
                    continue
                if record.taken_at_ms >= window.seeded_at_ms:
                    window.add(amount - reserved, -reserved)
                elif closed_at_ms > window.seeded_at_ms:
                    window.add(amount)

    def _record(self, entry: Entry, now_ms: int, lifetime_ms: int) -> None:
        record = self._records[entry.id] = _Record(entry, now_ms, now_ms + lifetime_ms)
        for bucket in entry.buckets:
            amount = entry.reserved.of(bucket.kind)
            if bucket.kind.is_per_minute:
                self._rate(bucket, now_ms).charge(amount * MINUTE_MS)
            elif bucket.kind.is_budget:
                self._window(bucket, now_ms).add(amount, amount)
        self._enter(entry.id, record)

    def _enter(self, id: str, record: _Record) -> None:
        heapq.heappush(self._expiries, (record.expires_at_ms, id))
        for bucket in record.buckets:
            if bucket.kind is LimitKind.CONCURRENT:
                self._open.setdefault(bucket.name, {})[id] = record.expires_at_ms

    def _leave(self, name: str, id: str) -> None:
        ends = self._open.get(name, {})
        ends.pop(id, None)
        if not ends:
            self._open.pop(name, None)

    def _sweep(self, now_ms: int) -> None:
        num_swept = 0
        while self._expiries and self._expiries[0][0] <= now_ms and num_swept < SWEPT_AT_ONCE:
            expires_at_ms, id = heapq.heappop(self._expiries)
            record = self._records.get(id)
            if record is not None and record.expires_at_ms == expires_at_ms:
                del self._records[id]
                self._settle_record(id, record, None, 0, now_ms)
                num_swept += 1
        while self._settled_in_order and self._settled[self._settled_in_order[0]] < now_ms:
            del self._settled[self._settled_in_order.popleft()]

    def _rooms(self, entry: Entry, now_ms: int) -> list[Room]:
        return [self._room(bucket, now_ms) for bucket in entry.buckets]

    def _room(self, bucket: Bucket, now_ms: int) -> Room:
        if bucket.kind.is_per_minute:
            return self._rate(bucket, now_ms).room()
        if bucket.kind is LimitKind.CONCURRENT:
            return Room(max(0, bucket.capacity - self._num_open(bucket, now_ms)), 0)
        used = self._window(bucket, now_ms).used
        return Room(max(0, bucket.capacity - used), window_end_ms(bucket.kind, now_ms) - now_ms)

    def _wait_ms(self, bucket: Bucket, amount: int, now_ms: int) -> int:
        """Time until the bucket has room for `amount`; 0 if it has."""
        if bucket.kind.is_per_minute:
            return self._rate(bucket, now_ms).wait_ms(amount)
        if bucket.kind is LimitKind.CONCURRENT:
            return 0 if self._num_open(bucket, now_ms) < bucket.capacity else BUSY_MS
        window, end_ms = self._window(bucket, now_ms), window_end_ms(bucket.kind, now_ms) - now_ms
        if bucket.capacity == 0 or window.used - window.reserved + amount > bucket.capacity:
            return end_ms
        return 0 if window.used + amount <= bucket.capacity else min(BUSY_MS, end_ms)

    def _num_open(self, bucket: Bucket, now_ms: int) -> int:
        for id in [id for id, end in self._open.get(bucket.name, {}).items() if end <= now_ms]:
            self._leave(bucket.name, id)
        return len(self._open.get(bucket.name, {}))

    def _rate(self, bucket: Bucket, now_ms: int) -> RateBucket:
        """Up to date, with the limit of the last request that was reserved."""
        rate = self._rates.setdefault((bucket.name, bucket.kind), RateBucket(bucket.capacity, now_ms))
        rate.advance(now_ms)
        return rate

    def _window(self, bucket: Bucket, now_ms: int) -> BudgetWindow:
        id = window_of(bucket.kind, now_ms)
        window = self._windows.setdefault((bucket.name, bucket.kind), BudgetWindow(id))
        window.advance(id)
        return window

    def _unseeded(self, entry: Entry, seeds: Mapping[int, int], now_ms: int) -> list[int]:
        return [
            index
            for index, bucket in enumerate(entry.buckets)
            if bucket.kind.is_budget and not self._seed(bucket, seeds.get(index), now_ms)
        ]

    def _seed(self, bucket: Bucket, spent: int | None, now_ms: int) -> bool:
        """False if neither this model nor the ledger has said what was spent of a budget."""
        window = self._windows.get((bucket.name, bucket.kind))
        if window is not None and window.seeded_at_ms:
            return True
        if spent is None:
            return False
        window = self._window(bucket, now_ms)
        window.used, window.reserved, window.seeded_at_ms = min(MOST_COUNTED, spent), 0, now_ms
        return True

    def _forget(self, names: Set[str]) -> None:
        for name in names:
            for kind in LimitKind:
                self._rates.pop((name, kind), None)
                self._windows.pop((name, kind), None)


def _rank(bucket: Bucket, reserved: Amounts, wait_ms: int) -> int:
    """Order of refusals: first a request that never fits, then a budget that is spent, then the longest wait. 0 is
    none.
    """
    if bucket.kind.is_budget:
        return wait_ms + 10**12 if wait_ms > BUSY_MS else wait_ms
    return 10**13 if reserved.of(bucket.kind) > bucket.capacity else wait_ms
