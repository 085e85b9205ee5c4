"""How late the event loop of this process is: a message that comes waits for that long until somebody reads it.

A task sleeps for INTERVAL_S again and again, and observes how late it is woken. Where the loop is blocked for longer
than that, the task misses moments at which it should have been woken. They are observed as well, each with the time
that was left of the block. So the observations are a sample of all moments, and not of the wakes alone: a p99 of 0.2 s
says that what comes waits for 0.2 s or more in a hundredth of the time.
"""

import asyncio
from collections.abc import Iterator

from cluster.metrics.processes import LOOP_LAG

INTERVAL_S = 0.5
"""Time between two looks, in seconds. Longer sees fewer of the short blocks: one that is shorter than this is seen by
the share that it has of the interval. Shorter costs each process more while it is idle: a wake takes up to 0.25 ms of
CPU time, as the caches are cold then.
"""
LONGEST_S = 60.0
"""A longer block counts as one of this length, in seconds: the process was stopped, or its machine was. Longer lets
one stop decide the quantiles for longer; shorter hides for how long a loop is blocked.
"""


async def watch_event_loop() -> None:
    """Observe the lag of the running event loop until this is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due_at = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        for lag_s in lags(loop.time() - due_at, INTERVAL_S):
            LOOP_LAG.observe(lag_s)


def lags(late_s: float, interval_s: float) -> Iterator[float]:
    """The lags at the moment at which a task was due and at those that it has missed since, `interval_s` apart.
    `late_s`: how late it was woken, in seconds. Slightly less than 0 where the loop rounds its clock.
    """
    lag_s = min(max(0.0, late_s), LONGEST_S)
    yield lag_s
    while (lag_s := lag_s - interval_s) > 0.0:
        yield lag_s
