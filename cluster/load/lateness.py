"""Whether the generator itself was late: what it says of the endpoint is only as good as its own timing."""

import asyncio
import time

from cluster.load.record import GeneratorFigures

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
        lags = sorted(self._lags) or [0.0]
        return GeneratorFigures(
            cpu_share=(time.process_time() - self._cpu_began) / wall_s,
            loop_lag_p99_s=lags[int(0.99 * len(lags))],
            loop_lag_max_s=lags[-1],
            most_open=self._most_open,
        )

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self._lags.append(max(0.0, time.perf_counter() - began - TICK_S))
