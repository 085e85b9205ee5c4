"""A text that takes minutes to count does not delay the counting of further texts."""

import asyncio
import threading

from hypothesis import given
from hypothesis import strategies as st

from api.frontend.tokens.token_counting import COUNTED_AT_A_TIME, TextCounter

LONG = "x" * COUNTED_AT_A_TIME


@given(st.lists(st.integers(0, 400_000), max_size=8))
def test_each_text_is_counted_whole(sizes: list[int]) -> None:
    counts = asyncio.run(TextCounter(len).counts(["x" * size for size in sizes]))
    assert counts == sizes


async def test_short_question_waits_for_a_part_of_a_long_one_and_not_for_all_of_it() -> None:
    started, may_go_on = threading.Semaphore(0), threading.Semaphore(0)

    def count(text: str) -> int:
        started.release()
        may_go_on.acquire()
        return len(text)

    counter = TextCounter(count)
    long = asyncio.create_task(counter.counts([LONG] * 100))
    await asyncio.to_thread(started.acquire)
    short = asyncio.create_task(counter.counts([LONG]))
    await asyncio.sleep(0)
    may_go_on.release(2)
    assert await asyncio.wait_for(short, 5) == [COUNTED_AT_A_TIME]
    assert not long.done()
    may_go_on.release(100)
    assert await asyncio.wait_for(long, 5) == [COUNTED_AT_A_TIME] * 100


async def test_long_texts_are_counted_one_at_a_time_beside_the_threads_that_all_share() -> None:
    may_go_on, counting, most = threading.Event(), set[int](), 0

    def count(text: str) -> int:
        nonlocal most
        counting.add(threading.get_ident())
        most = max(most, len(counting))
        may_go_on.wait()
        counting.remove(threading.get_ident())
        return len(text)

    async with asyncio.TaskGroup() as many:
        for _ in range(100):
            many.create_task(TextCounter(count).counts([LONG]))
        await asyncio.sleep(0)
        try:
            assert await asyncio.wait_for(asyncio.to_thread(len, "work of others"), 5) == 14
        finally:
            may_go_on.set()
    assert most == 1
