import asyncio

import pytest

from cluster.simulation.clock import Deadlock, VirtualLoop


def test_sleeping_takes_virtual_time_alone() -> None:
    async def main() -> float:
        await asyncio.sleep(1e6)
        return asyncio.get_running_loop().time()

    assert VirtualLoop().run(main()) == 1e6


def test_timers_of_one_moment_run_in_order_of_their_setting() -> None:
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, seen.append, "late")
        for name in ("a", "b", "c"):
            loop.call_later(1.0, seen.append, name)
        loop.call_later(1.5, seen.append, "cancelled").cancel()
        await asyncio.sleep(3.0)

    VirtualLoop().run(main())
    assert seen == ["a", "b", "c", "late"]


def test_timeouts_follow_the_virtual_clock() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert VirtualLoop().run(main()) == 30.0


def test_waiting_for_what_never_happens_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        VirtualLoop().run(main())


def test_error_that_nobody_waits_for_ends_the_run() -> None:
    def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        asyncio.get_running_loop().call_later(1.0, fail)
        await asyncio.sleep(2.0)

    with pytest.raises(ValueError, match="broken"):
        VirtualLoop().run(main())


def test_tasks_that_are_left_behind_are_cancelled() -> None:
    ended = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def main() -> str:
        task = asyncio.create_task(forever())
        await asyncio.sleep(1.0)
        assert not task.done()
        return "done"

    assert VirtualLoop().run(main()) == "done"
    assert ended == [True]
