"""A text that takes minutes to count does not delay the counting of further texts."""

import asyncio
import threading

from hypothesis import given
from hypothesis import strategies as st

from api.frontend import token_counting as text_counting
from api.frontend.token_counting import COUNTED_AT_A_TIME, TextCounter

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


async def test_threads_that_all_share_are_free_meanwhile() -> None:
    names = set()

    def count(text: str) -> int:
        names.add(threading.current_thread().name)
        return len(text)

    await asyncio.gather(*(TextCounter(count).counts([LONG] * 3) for _ in range(20)))
    assert len(names) == 1 and text_counting._COUNTING._max_workers == 1
