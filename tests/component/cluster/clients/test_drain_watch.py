"""DrainWatch: an ingress follows which cells drain, and keeps the last state while the store is away."""

import asyncio

import pytest

from cluster.cell_states import CellStates
from cluster.clients import drain_watch
from cluster.clients.drain_watch import DrainWatch
from cluster.messages.ids import CellName
from tests.unit.memory_store import MemoryStore

A, B = CellName("a"), CellName("b")


async def test_last_state_stays_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drain_watch, "DRAIN_LOOK_S", 0.01)
    store, heard = MemoryStore(), list[frozenset[CellName]]()
    states = CellStates(store)
    states.drain(A)
    watch = DrainWatch(lambda: states.draining([A, B]), heard.append)
    await _looks()
    assert heard == [{A}]
    store.is_away = True
    await _looks()
    store.is_away = False
    await _looks()
    assert heard == [{A}]
    assert caplog.text.count("cannot be read") == 1
    states.open(A)
    await _looks()
    assert heard == [{A}, frozenset()]
    watch.close()


async def test_watch_goes_on_after_an_ingress_that_fails_to_follow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drain_watch, "DRAIN_LOOK_S", 0.01)
    states, heard = CellStates(MemoryStore()), list[frozenset[CellName]]()

    def hear(draining: frozenset[CellName]) -> None:
        heard.append(draining)
        if len(heard) == 1:
            raise RuntimeError("a bug")

    states.drain(A)
    watch = DrainWatch(lambda: states.draining([A, B]), hear)
    await _looks()
    assert heard == [{A}, {A}]
    assert "a bug" in caplog.text
    states.open(A)
    await _looks()
    assert heard[2:] == [frozenset()]
    watch.close()


async def _looks() -> None:
    await asyncio.sleep(0.2)
