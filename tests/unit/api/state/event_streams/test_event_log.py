"""What a response has told: read by many, from anywhere, as far as it is released."""

import asyncio
from typing import Any

import msgspec

from api.state.event_streams.event_log import EventLog, LogSpace

CREATED: dict[str, Any] = {"id": "resp_1", "status": "in_progress", "output": []}


def a_log(space: LogSpace | None = None) -> EventLog:
    return EventLog(CREATED, space or LogSpace(1 << 20, 1 << 20))


def events(*numbers: int) -> list[dict[str, Any]]:
    return [{"type": "response.other", "n": number} for number in numbers]


def lines(*numbers: int) -> list[bytes]:
    return [msgspec.json.encode(event) for event in events(*numbers)]


def number_of(event: bytes) -> int:
    return int(msgspec.json.decode(event)["n"])


async def read(log: EventLog, after: int = -1) -> list[int]:
    return [number_of(event) async for event in log.read(after)]


async def test_all_readers_get_all_events_from_where_they_begin() -> None:
    log = a_log()
    readers = [asyncio.create_task(read(log, after)) for after in (-1, 0, 2)]
    await asyncio.sleep(0)
    log.add(events(0, 1))
    log.release(2)
    await asyncio.sleep(0)
    log.add(events(2, 3))
    log.end()
    assert [await reader for reader in readers] == [[0, 1, 2, 3], [1, 2, 3], [3]]


async def test_reader_who_knows_more_than_there_is_learns_how_it_ended() -> None:
    log = a_log()
    readers = [asyncio.create_task(read(log, after)) for after in (3, 9)]
    log.add(events(0, 1, 2, 3))
    log.end()
    assert [await reader for reader in readers] == [[3], [3]]
    nothing = a_log()
    nothing.end()
    assert await read(nothing) == []


async def test_events_are_held_until_they_are_released() -> None:
    log = a_log()
    log.add(events(0, 1))
    reader = log.read()
    log.release(1)
    assert number_of(await anext(reader)) == 0
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.release(2)
    assert number_of(await waiting) == 1


async def test_what_is_remembered_instead_is_what_clients_get() -> None:
    log = a_log()
    log.add(events(0, 1, 2))
    log.release(1)
    reader = log.read()
    assert number_of(await anext(reader)) == 0
    assert log.settle(lines(0, 7))
    log.end()
    assert [number_of(event) async for event in reader] == [7]


async def test_what_a_client_has_seen_stays_whatever_is_remembered() -> None:
    log = a_log()
    log.add(events(0, 1, 2))
    log.release(3)
    assert not log.settle(lines(0, 7))
    log.end()
    assert await read(log) == [0, 1, 2]


def test_events_are_taken_little_by_little() -> None:
    log = a_log()
    log.add(events(0, 1, 2))
    size = len(lines(0)[0])
    assert len(log.since(0, max_bytes=2 * size)) == 2 and len(log.since(1, max_bytes=1)) == 1 and log.since(3) == []


def test_log_that_is_too_large_is_full_and_no_other() -> None:
    size = len(lines(0)[0])
    space = LogSpace(most=100 * size, most_of_one=3 * size)
    one, other = a_log(space), a_log(space)
    one.add(events(0, 1, 2))
    assert not one.is_full
    one.add(events(3))
    other.add(events(0))
    assert one.is_full and not other.is_full


def test_largest_log_is_full_when_all_are_too_large_together() -> None:
    size = len(lines(0)[0])
    space = LogSpace(most=10 * size, most_of_one=9 * size)
    large, *small = [a_log(space) for _ in range(4)]
    large.add(events(*range(6)))
    for log in small:
        log.add(events(0))
    assert not large.is_full
    small[0].add(events(1, 2))
    assert large.is_full and not any(log.is_full for log in small)
    large.forget()
    assert space.used == 5 * size
