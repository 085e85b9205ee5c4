"""What a response has told: read by many, from anywhere, as far as it is released."""

import asyncio

from api.responses.event_log import EventLog


def events(*numbers: int) -> list[dict[str, int]]:
    return [{"n": number} for number in numbers]


async def read(log: EventLog, after: int = -1) -> list[int]:
    return [int(event.decode().removeprefix('{"n":').removesuffix("}")) async for event in log.read(after)]


async def test_all_readers_get_all_events_from_where_they_begin():
    log = EventLog()
    readers = [asyncio.create_task(read(log, after)) for after in (-1, 0, 2, 9)]
    await asyncio.sleep(0)
    log.add(events(0, 1))
    log.release(2)
    await asyncio.sleep(0)
    log.add(events(2, 3))
    log.end()
    assert [await reader for reader in readers] == [[0, 1, 2, 3], [1, 2, 3], [3], []]


async def test_events_are_held_until_they_are_released():
    log = EventLog()
    log.add(events(0, 1))
    reader = log.read()
    log.release(1)
    assert await anext(reader) == b'{"n":0}'
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.release(2)
    assert await waiting == b'{"n":1}'


async def test_what_is_remembered_instead_is_what_clients_get():
    log = EventLog()
    log.add(events(0, 1, 2))
    log.release(1)
    reader = log.read()
    assert await anext(reader) == b'{"n":0}'
    log.settle([b'{"n":0}', b'{"n":7}'])
    log.end()
    assert [event async for event in reader] == [b'{"n":7}']


async def test_what_a_client_has_seen_stays_whatever_is_remembered():
    log = EventLog()
    log.add(events(0, 1, 2))
    log.release(3)
    log.settle([b'{"n":0}', b'{"n":7}'])
    log.end()
    assert await read(log) == [0, 1, 2]


def test_events_are_taken_little_by_little():
    log = EventLog()
    log.add(events(0, 1, 2))
    assert len(log.since(0, max_bytes=15)) == 2 and len(log.since(1, max_bytes=1)) == 1 and log.since(3) == []
