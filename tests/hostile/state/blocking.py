"""How long the event loop stands still."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Longest:
    blocked_s = 0.0


@asynccontextmanager
async def longest_block() -> AsyncIterator[Longest]:
    """In CPU time of this process, so that nothing counts that others do on the machine: what a thread does meanwhile
    counts where it holds the interpreter, too. What there was before is frozen, as an ingress freezes it: a full
    garbage collection in a process that has run thousands of tests takes a second.
    """
    longest = Longest()

    async def tick() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.process_time()
            longest.blocked_s = max(longest.blocked_s, now - last)
            last = now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    gc.freeze()
    longest.blocked_s = 0.0
    try:
        yield longest
    finally:
        ticking.cancel()
        gc.unfreeze()
