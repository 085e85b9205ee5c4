"""ScalingLoop: asks the Scheduler for the load at intervals, and publishes the sizes that the pools are to have."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from cluster.errors import WorkerUnreachable
from cluster.messages.ids import Pool
from cluster.messages.scaling import LoadReading, ScalingAsk
from cluster.metrics.scaling import EXPECTED_REQUESTS, POOL_TARGET, POOL_WANTED, RETIRING, SCALING_CORRECTION
from cluster.scaling.autoscaler import Autoscaler
from cluster.scaling.pool_sizes import PoolSizes
from cluster.scaling.serve_view import ServeAway, ServeState

logger = logging.getLogger("baton.scaling")

LOOK_S = 1.0
"""Time between two looks at the load, in seconds. Longer reacts later; shorter costs the Scheduler time."""
SERVE_LOOK_S = 15.0
"""Time between two looks at Serve while no worker is to be stopped, in seconds: an operator may have deployed other
sizes. Longer notices that later; shorter costs Serve's controller time for each replica.
"""


class LoadSource(Protocol):
    async def load(self, ask: ScalingAsk) -> LoadReading:
        """Raises WorkerUnreachable."""
        ...


class ServeSource(Protocol):
    async def state(self) -> ServeState:
        """Raises ServeAway."""
        ...


class ScalingLoop:
    def __init__(
        self,
        autoscaler: Autoscaler,
        scheduler: LoadSource,
        serve: ServeSource,
        publish: Callable[[PoolSizes], Awaitable[None]],
    ) -> None:
        self._autoscaler, self._scheduler, self._serve, self._publish = autoscaler, scheduler, serve, publish
        self._present: PoolSizes | None = None
        self._asked_serve_at = float("-inf")
        self._is_blind = False
        """The last look has failed."""

    async def run(self) -> None:
        while True:
            try:
                await self.look()
                self._is_blind = False
            except (WorkerUnreachable, ServeAway) as error:
                self._autoscaler.let_go()
                if not self._is_blind:
                    logger.warning("the pools keep their sizes: %s", error)
                self._is_blind = True
            except Exception:  # the loop must go on after any error
                self._autoscaler.let_go()
                logger.exception("the pools keep their sizes: a look at the load failed")
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Raises WorkerUnreachable or ServeAway: nothing has changed."""
        now = asyncio.get_running_loop().time()
        state = await self._serve.state() if now - self._asked_serve_at >= SERVE_LOOK_S else None
        present = state.sizes if state is not None else self._present
        if state is not None:
            self._asked_serve_at = now
        assert present is not None
        self._present = present
        reading = await self._scheduler.load(ScalingAsk(self._autoscaler.retiring))
        needed = wanted = self._autoscaler.wanted(reading, present, now, time.time())
        if any(wanted.of(pool) < present.of(pool) for pool in Pool):
            state = await self._serve.state()
            self._asked_serve_at = now
            if state.sizes != present or not state.is_settled:
                # Serve still follows: the workers that it stops now are among the first victims
                wanted = PoolSizes.by_pool(lambda pool: max(wanted.of(pool), present.of(pool)))
        victims = state.victims if state is not None else {}
        targets = self._autoscaler.targets(wanted, present, victims, reading, now)
        self._show(needed, targets)
        if targets != present:
            logger.info(
                "the pools are to have %d prefill and %d decode workers instead of %d and %d: %s, %d requests wait",
                *targets,
                *present,
                self._autoscaler.policy.explained,
                reading.num_waiting,
            )
        await self._publish(targets)
        self._present = targets

    def _show(self, wanted: PoolSizes, targets: PoolSizes) -> None:
        policy = self._autoscaler.policy
        for pool in Pool:
            POOL_WANTED.labels(pool).set(wanted.of(pool))
            POOL_TARGET.labels(pool).set(targets.of(pool))
        RETIRING.set(len(self._autoscaler.retiring))
        EXPECTED_REQUESTS.set(policy.expected_per_s)
        SCALING_CORRECTION.set(policy.correction)
