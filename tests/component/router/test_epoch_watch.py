"""A Scheduler that was replaced notices it, and one that is the newest stays so."""

import asyncio
from collections.abc import Callable

import pytest

from cluster.scheduler_registry import SchedulerRegistry
from router import epoch_watch
from router.epoch_watch import EpochWatch
from tests.unit.factories import an_address
from tests.unit.memory_store import MemoryStore


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_watch, "WATCH_S", 0.01)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110  # the watch sets no event
            await asyncio.sleep(0.01)


def watch(store: MemoryStore, replaced: list[str], name: str) -> EpochWatch:
    registry = SchedulerRegistry(store)
    return EpochWatch(registry, registry.claim(an_address(name), "n0"), lambda: replaced.append(name))


async def test_older_scheduler_finds_the_newer_one_in_the_registry() -> None:
    store, replaced = MemoryStore(), list[str]()
    older = watch(store, replaced, "older")
    newer = watch(store, replaced, "newer")
    await until(lambda: older.is_replaced)
    assert (replaced, newer.is_replaced) == (["older"], False)
    newer.close()


async def test_slower_claim_of_the_older_one_does_not_hide_the_newer_one() -> None:
    store, replaced = MemoryStore(), list[str]()
    older = watch(store, replaced, "older")
    overwritten_with = store.values["newest"]
    newer = watch(store, replaced, "newer")
    store.values["newest"] = overwritten_with
    await until(lambda: older.is_replaced)
    found = SchedulerRegistry(store).newest()
    assert found is not None and found.address == an_address("newer")
    newer.close()


async def test_store_that_is_away_or_empty_ends_no_scheduler(caplog: pytest.LogCaptureFixture) -> None:
    store, replaced = MemoryStore(), list[str]()
    only = watch(store, replaced, "only")
    store.is_away = True
    await until(lambda: "cannot be read" in caplog.text)
    store.values.clear()
    store.is_away = False
    await until(lambda: "newest" in store.values)
    assert not only.is_replaced
    only.close()


async def test_peer_s_word_of_a_newer_scheduler_is_enough_and_of_an_older_one_is_nothing() -> None:
    replaced = list[str]()
    own = watch(MemoryStore(), replaced, "own")
    own.heard_of(1)
    assert not own.is_replaced
    own.heard_of(1 << 50)
    own.heard_of(1 << 51)
    assert replaced == ["own"]
