"""EpochWatch: has a Scheduler notice that a newer one has taken its place.

The watch reads the registry (cluster/scheduler_registry.py) in intervals. If the store cannot be reached, the Scheduler
goes on: the store's loss must not end the service. A newer Scheduler is then told of by the first worker or ingress
that finds it (`REPLACED` of cluster/rpc/protocol.py).
"""

import asyncio
import logging
from collections.abc import Callable

from cluster.scheduler_registry import SchedulerRecord, SchedulerRegistry

logger = logging.getLogger("baton.scheduler")

WATCH_S = 1.0
"""Time between two looks at the registry, in seconds. Longer lets a replaced Scheduler place for longer; shorter asks
the store more often.
"""


class EpochWatch:
    def __init__(self, registry: SchedulerRegistry, own: SchedulerRecord, on_replaced: Callable[[], None]) -> None:
        self._registry = registry
        self._own = own
        self._on_replaced = on_replaced
        self.is_replaced = False
        self._watching = asyncio.create_task(self._watch())

    def heard_of(self, epoch: int) -> None:
        """A Scheduler of this epoch exists."""
        if epoch <= self._own.epoch or self.is_replaced:
            return
        self.is_replaced = True
        self._watching.cancel()
        logger.warning(
            "a newer Scheduler has taken over (epoch %d; this one has epoch %d): this one serves no more",
            epoch,
            self._own.epoch,
        )
        self._on_replaced()

    def close(self) -> None:
        self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                newest = await asyncio.to_thread(self._registry.newest)
                if newest is None or newest.epoch < self._own.epoch:
                    await asyncio.to_thread(self._registry.register, self._own)
            except Exception as error:  # whatever the store raises, the Scheduler goes on
                logger.warning("the registry of Schedulers cannot be read: %s", error)
                continue
            if newest is not None:
                self.heard_of(newest.epoch)
