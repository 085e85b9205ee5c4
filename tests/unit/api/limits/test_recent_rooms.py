"""Requests may begin before they are granted only where their limits had ample room a moment ago."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.limits import recent_rooms
from api.limits.counters import Room
from api.limits.limits import Amounts
from api.limits.recent_rooms import AMPLE, REMEMBERED_S, RecentRooms
from cluster.config.tenants.limits import Limits
from tests.unit.api.limits.a_request import buckets

CAPACITY = 100
TWO = buckets(key=Limits(requests_per_minute=CAPACITY), tenant=Limits(tokens_per_minute=10_000))
ONE = Amounts(1, 10)


def known(requests_left: int, tokens_left: int = 10_000) -> RecentRooms:
    rooms = RecentRooms()
    rooms.note(TWO, [Room(requests_left, 0), Room(tokens_left, 0)], 10.0)
    return rooms


def test_limit_that_is_not_known_has_requests_wait() -> None:
    assert not RecentRooms().take(TWO, ONE, 10.0)
    rooms = known(CAPACITY)
    assert rooms.take(TWO, ONE, 10.0)
    assert not rooms.take(buckets(key=Limits(requests_per_minute=CAPACITY + 1)), ONE, 10.0)  # an operator raised it
    assert not rooms.take(TWO, ONE, 10.0 + REMEMBERED_S)


@pytest.mark.parametrize(("requests_left", "tokens_left"), [(50, 10_000), (100, 5_009)])
def test_all_limits_must_have_ample_room(requests_left: int, tokens_left: int) -> None:
    assert not known(requests_left, tokens_left).take(TWO, ONE, 10.0)
    assert known(requests_left + 1, tokens_left + 1).take(TWO, ONE, 10.0)


@given(st.integers(0, CAPACITY), st.integers(0, CAPACITY))
def test_requests_that_begin_at_once_leave_ample_room(left: int, number: int) -> None:
    rooms = known(left)
    num_begun = sum(rooms.take(TWO, ONE, 10.0) for _ in range(number))
    assert num_begun == min(number, max(0, left - int(AMPLE * CAPACITY)))


def test_limits_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_rooms, "MOST_REMEMBERED", 3)
    rooms = RecentRooms()
    several = [buckets(key=Limits(requests_per_minute=CAPACITY + i)) for i in range(4)]
    for which in several:
        rooms.note(which, [Room(CAPACITY, 0)], 10.0)
    assert [rooms.take(which, ONE, 10.0) for which in several] == [False, True, True, True]
