"""Whether the generator itself was late: what it says of the endpoint is only as good as its own timing.

Lateness is weighed by time. What comes during a stall of the event loop is read at its end: what comes at its begin is
late by all of it. A stall of 600 ms delays 600 ms of the load's tokens, but it is one look at the clock of many.
"""

import asyncio
import time
from collections.abc import Sequence

from cluster.load.record import LATE_S, GeneratorFigures

TICK_S = 0.02
"""Time between two looks at the event loop's clock, in seconds. Longer misses short delays; shorter costs CPU time."""


class Lateness:
    """Watches the event loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._most_open = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()
        self._task = asyncio.create_task(self._watch())

    def opened(self, number: int) -> None:
        """So many requests are open."""
        self._most_open = max(self._most_open, number)

    def stop(self) -> GeneratorFigures:
        if self._task is not None:
            self._task.cancel()
        wall_s = max(1e-9, time.perf_counter() - self._began)
        return GeneratorFigures(
            cpu_share=(time.process_time() - self._cpu_began) / wall_s,
            loop_lag_p99_s=lag_exceeded(self._lags, 1 - 0.99, wall_s),
            loop_lag_max_s=max(self._lags, default=0.0),
            loop_late_share=share_later(self._lags, LATE_S, wall_s),
            most_open=self._most_open,
        )

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self._lags.append(max(0.0, time.perf_counter() - began - TICK_S))


def share_later(stalls_s: Sequence[float], lag_s: float, wall_s: float) -> float:
    """Share of `wall_s` at which what came was read more than `lag_s` later: all of each stall but its last `lag_s`."""
    return min(1.0, sum(stall_s - lag_s for stall_s in stalls_s if stall_s > lag_s) / wall_s)


def lag_exceeded(stalls_s: Sequence[float], share: float, wall_s: float) -> float:
    """The lag that was exceeded in this share of `wall_s`. 0 if stalls took less time than that."""
    longest_s, wanted_s, lag_s = 0.0, share * wall_s, 0.0
    for number, stall_s in enumerate(sorted(stalls_s, reverse=True), start=1):
        if number > 1 and lag_s > stall_s:
            break
        longest_s += stall_s
        lag_s = (longest_s - wanted_s) / number  # which these stalls exceed for `wanted_s` together
    return max(0.0, lag_s)
