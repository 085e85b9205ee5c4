"""The watch of an event loop: on a virtual clock, which a block moves, and on a real loop."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import event_loop
from cluster.ending import end_tasks
from cluster.event_loop import INTERVAL_S, LONGEST_S, lags, watch_event_loop
from cluster.simulation.clock import VirtualLoop


class Observed:
    """In place of the metric."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self.is_late = asyncio.Event()

    def observe(self, lag_s: float) -> None:
        self.lags_s.append(lag_s)
        if lag_s >= 0.05:
            self.is_late.set()


class BlockedLoop(VirtualLoop):
    def block(self, seconds: float) -> None:
        """Nothing runs for so long."""
        self._now += seconds


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Observed:
    observed = Observed()
    monkeypatch.setattr(event_loop, "LOOP_LAG", observed)
    return observed


def on_virtual_loop(blocks: dict[float, float], seconds: float) -> None:
    """Watch a loop for so long. `blocks`: when it is blocked, and for how long."""
    loop = BlockedLoop()

    async def run() -> None:
        watching = asyncio.create_task(watch_event_loop())
        for at, block_s in blocks.items():
            loop.call_at(at, loop.block, block_s)
        await asyncio.sleep(seconds)
        watching.cancel()

    loop.run(run())


def test_loop_that_is_blocked_is_seen_by_each_moment_that_passes_meanwhile(observed: Observed) -> None:
    on_virtual_loop({0.75 * INTERVAL_S: 3 * INTERVAL_S}, seconds=5.5 * INTERVAL_S)
    assert observed.lags_s == pytest.approx([factor * INTERVAL_S for factor in (2.75, 1.75, 0.75)] + [0.0])


def test_loop_that_has_nothing_to_do_is_not_late(observed: Observed) -> None:
    on_virtual_loop({}, seconds=10.25)
    assert observed.lags_s == [0.0] * int(10 / INTERVAL_S)


def test_short_block_is_seen_if_a_look_falls_into_it(observed: Observed) -> None:
    on_virtual_loop({0.98 * INTERVAL_S: 0.1 * INTERVAL_S, 1.5 * INTERVAL_S: 0.1 * INTERVAL_S}, seconds=2.5 * INTERVAL_S)
    assert observed.lags_s == pytest.approx([0.08 * INTERVAL_S, 0.0])


async def test_block_of_a_real_loop_is_seen_and_the_watch_ends_when_it_is_told_to(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "INTERVAL_S", 0.01)
    watching = asyncio.create_task(watch_event_loop())

    def block() -> None:
        until = time.perf_counter() + 0.1
        while time.perf_counter() < until:
            pass

    asyncio.get_running_loop().call_soon(block)
    async with asyncio.timeout(10):
        await observed.is_late.wait()
        await end_tasks([watching])
    number = len(observed.lags_s)
    assert number > 5, "the moments that passed are counted too"
    await asyncio.sleep(0.03)
    assert len(observed.lags_s) == number


def test_process_that_was_stopped_for_a_night_does_not_count_for_all_of_it() -> None:
    assert next(lags(8 * 3600.0, 0.5)) == LONGEST_S
    assert sum(1 for _ in lags(8 * 3600.0, 0.5)) == LONGEST_S / 0.5


def test_wake_that_a_loop_rounds_to_an_earlier_time_is_not_late() -> None:
    assert list(lags(-0.0005, 0.5)) == [0.0]


@given(st.floats(-1.0, 1e6), st.floats(0.01, 1.0))
def test_lags_fall_from_the_first_moment_to_the_wake(late_s: float, interval_s: float) -> None:
    found = list(lags(late_s, interval_s))
    assert found[0] == min(max(0.0, late_s), LONGEST_S)
    assert len(found) == 1 or (min(found) > 0.0 and found[-1] <= interval_s * (1 + 1e-6))
    assert found == sorted(found, reverse=True)
