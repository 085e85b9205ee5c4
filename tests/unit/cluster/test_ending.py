"""Background tasks end, whatever they answer a cancellation with."""

import asyncio

import pytest

from cluster import ending
from cluster.ending import end_tasks


async def test_task_that_goes_on_after_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "CANCEL_AGAIN_S", 0.01)
    num_cancelled = 0

    async def deaf() -> None:
        nonlocal num_cancelled
        while num_cancelled < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                num_cancelled += 1

    async def fails() -> None:
        raise ValueError

    tasks = [asyncio.create_task(deaf()), asyncio.create_task(asyncio.sleep(100)), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await end_tasks(tasks)
    assert num_cancelled == 3
    assert all(task.done() for task in tasks)
    assert isinstance(tasks[2].exception(), ValueError)


async def test_nothing_to_end_ends_at_once() -> None:
    await end_tasks([])
