"""ScalingPolicy: how many workers the two pools should have. Pure.

1. **Demand.** The requests that will arrive when a worker that starts now is ready (cluster/scaling/forecast.py), and
   those that wait, divided by the rates of one worker of each pool (cluster/scaling/worker_rates.py). That gives
   prefill and decode workers as real numbers p and d. KV memory that is nearly full raises d.
2. **Both pools together.** Workers of either pool can do the work of the other (paths D and P), so the sum p + d is
   rounded up, and not each of both. New workers go to the pool that lacks most of its share, and workers leave the pool
   that has most beyond it. So the pools keep their ratio, and a small load has one worker for both kinds of work.
3. **Correction.** The rates are a model. What share of the requests met their objectives while the sizes stood says by
   which factor it is wrong.
4. **Up at once, down late.** Fewer workers must have been enough for `down_after_s` without a break.

All signals are counts that stand still when traffic stops, so the policy then comes down to the floor by itself. The
same object sizes the pools in production (cluster/scaling/scaling_loop.py) and in the simulator.
"""

from collections import deque
from math import ceil
from typing import Final

from cluster.config.scaling import PoolBounds, ScalingConfig
from cluster.messages.ids import Pool
from cluster.messages.scaling import LoadReading
from cluster.scaling.correction import Correction
from cluster.scaling.forecast import Forecast
from cluster.scaling.peaks import floor_at
from cluster.scaling.pool_sizes import PoolSizes
from cluster.scaling.start_times import StartTimes
from cluster.scaling.worker_rates import WorkerRates, worker_rates

RATES_EVERY_S: Final = 10.0
"""Time between two computations of the rates of a worker, in seconds. Longer is late to see longer prompts or answers;
shorter costs some 10 ms of CPU each time.
"""
DRAIN_QUEUE_S: Final = 30.0
"""Time in which the requests that wait should be served beside those that arrive, in seconds. Longer lets them give up;
shorter orders workers that are not needed when the queue is gone.
"""
FULL_KV: Final = 0.85
"""Share of the decode workers' KV memory that requests may have reserved. Higher has requests wait for memory; lower
orders workers while there is room.
"""
SLACK: Final = 0.1
"""Part of a worker that may lack before another one is ordered. Higher lets the workers be fuller than the target
allows; lower orders a worker for a demand that is hardly above a whole number.
"""
LONGEST_GAP_S: Final = 15.0
"""Longest time between two readings that is no gap, in seconds. Requests of a gap may never have been counted. Higher
takes a gap for a time without traffic; lower takes a slow Scheduler for one that was away.
"""


class ScalingPolicy:
    def __init__(self, config: ScalingConfig, correction: float = 1.0) -> None:
        """`correction`: the one to begin with."""
        self._config = config
        self._forecast = Forecast()
        self._correction = Correction(config.target, correction)
        self._starts = StartTimes(config.start_s)
        self._rates: WorkerRates | None = None
        self._rates_at = float("-inf")
        self._needed: deque[tuple[float, int]] = deque()
        """When how many workers were needed, in the last `down_after_s`. Numbers fall from left to right: those that a
        later, higher one covers are left out.
        """
        self._watched_since: float | None = None
        """Since when the load is known without a gap. None before the first reading."""
        self._scheduler: str | None = None
        self._read_at = float("-inf")

    @property
    def expected_per_s(self) -> float:
        """Requests per second when a worker that is ordered now is ready. 0 while nothing is known."""
        return self._forecast.rate_per_s(self._starts.horizon_s) or 0.0

    @property
    def correction(self) -> float:
        """Workers for each one that the model asks for."""
        return self._correction.factor

    @property
    def explained(self) -> str:
        """The figures of the last decision, for the log."""
        rates = self._rates or WorkerRates(0.0, 0.0)
        return (
            f"{self.expected_per_s:.3g} requests/s expected, a worker carries {rates.prefill:.3g} prompts/s or "
            f"{rates.decode:.3g} answers/s, correction {self.correction:.2f}"
        )

    def sizes(self, reading: LoadReading, present: PoolSizes, now: float, wall_s: float) -> PoolSizes:
        """The sizes that the pools should have. `present`: those that were ordered last, whether the workers are ready
        or not. `now`: monotonic seconds; `wall_s`: seconds since 1970.
        """
        self._take(reading, present, now)
        floor = self._floor(wall_s)
        shares = self._shares(reading, self._correction.factor)
        if shares is None:
            return self._bounded(present, floor)
        prefill, decode = shares
        needed = max(ceil(prefill + decode - SLACK) + self._config.standby, floor.total)
        self._remember(needed, now)
        is_long_enough = self._watched_since is not None and now - self._watched_since >= self._config.down_after_s
        total = max(needed, min(present.total, self._needed[0][1] if is_long_enough else present.total))
        share = prefill / (prefill + decode) if prefill + decode > 0 else 0.5
        return self._resized(self._bounded(present, floor), total, share, floor)

    def _take(self, reading: LoadReading, present: PoolSizes, now: float) -> None:
        """Learn from a reading."""
        live = PoolSizes(len(reading.prefill.open_requests), len(reading.decode.open_requests))
        has_gap, self._read_at = now - self._read_at > LONGEST_GAP_S, now
        if has_gap or reading.scheduler != self._scheduler:
            self._scheduler, self._watched_since = reading.scheduler, now
            self._forecast.begin_anew(reading.num_arrived, now)
            self._starts.begin_anew()
            self._correction.begin_anew(reading.num_good, reading.num_missed, now)
        self._starts.observe(present.total, live.total, now)
        self._forecast.observe(reading.num_arrived, now, self._starts.horizon_s)
        modelled = sum(self._shares(reading, 1.0) or ())
        self._correction.observe(
            reading.num_good,
            reading.num_missed,
            now,
            ratio=live.total / modelled if modelled else None,
            is_settled=live.total >= present.total,
        )
        if now - self._rates_at >= RATES_EVERY_S and (rates := worker_rates(reading, self._config.target)) is not None:
            self._rates, self._rates_at = rates, now

    def _shares(self, reading: LoadReading, factor: float) -> tuple[float, float] | None:
        """Prefill and decode workers that the expected load takes, as real numbers. None while that is not known.
        `factor`: workers for each one that the model asks for.
        """
        rate = self._forecast.rate_per_s(self._starts.horizon_s)
        if rate is None or self._rates is None:
            return None
        rate = factor * rate + reading.num_waiting / DRAIN_QUEUE_S
        by_memory = reading.decode.kv_share / FULL_KV * len(reading.decode.open_requests)
        return rate / self._rates.prefill, max(rate / self._rates.decode, by_memory)

    def _remember(self, needed: int, now: float) -> None:
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now, needed))
        while self._needed[0][0] < now - self._config.down_after_s:
            self._needed.popleft()

    def _floor(self, wall_s: float) -> PoolSizes:
        peaks, config = floor_at(self._config.peaks, wall_s, self._starts.horizon_s), self._config
        return PoolSizes(max(peaks.prefill, config.prefill.min), max(peaks.decode, config.decode.min))

    def _bounded(self, sizes: PoolSizes, floor: PoolSizes) -> PoolSizes:
        return PoolSizes(
            min(max(sizes.prefill, floor.prefill), self._config.prefill.max),
            min(max(sizes.decode, floor.decode), self._config.decode.max),
        )

    def _resized(self, sizes: PoolSizes, total: int, share: float, floor: PoolSizes) -> PoolSizes:
        """Add or take workers until there are `total`, or the bounds are reached. `share`: that of the prefill pool."""
        bounds: dict[Pool, PoolBounds] = {Pool.PREFILL: self._config.prefill, Pool.DECODE: self._config.decode}
        step = 1 if total > sizes.total else -1
        while sizes.total != total:
            lacks = {Pool.PREFILL: total * share - sizes.prefill, Pool.DECODE: total * (1 - share) - sizes.decode}
            free = [
                pool
                for pool in Pool
                if (sizes.of(pool) < bounds[pool].max if step > 0 else sizes.of(pool) > floor.of(pool))
            ]
            if not free:
                break
            sizes = sizes.changed(max(free, key=lambda pool: step * lacks[pool]), step)
        return sizes
