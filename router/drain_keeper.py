"""DrainKeeper: has a drain of a worker outlive the Scheduler, and puts it into effect.

A change is stored before it counts. So whoever gets an answer knows that a successor of this Scheduler keeps the drain:
a successor claims its epoch before it reads the store, and a Scheduler looks for a higher epoch after it has written.
A Scheduler that finds one refuses the change, which its successor may have read or not. What it has written overwrites
nothing of its successor (cluster/worker_drains.py).
"""

import asyncio
import logging
from contextlib import suppress

from cluster.errors import Conflict, NotFound, StateUnavailable
from cluster.messages.ids import WorkerId
from cluster.messages.operations import DrainAnswer, DrainAsk
from cluster.scheduler_registry import SchedulerRegistry
from cluster.worker_drains import WorkerDrains
from router.recording.recorded_state import State

logger = logging.getLogger("baton.scheduler")

RETRY_AFTER_S = 2.0
"""Retry-After of a drain that could not be stored, in seconds. Also the time between two attempts to read the
store, where the first one failed. Ray's store is back in some seconds, or not at all. Shorter asks it more often;
longer keeps an operator waiting, and places on draining workers for longer.
"""


class DrainKeeper:
    def __init__(self, state: State, store: WorkerDrains, registry: SchedulerRegistry) -> None:
        """Blocks until the store has told which workers drain. A store that fails is read again. `store`: with the
        epoch of this Scheduler.
        """
        self._state = state
        self._store = store
        self._registry = registry
        self._changing = asyncio.Lock()
        """Held during a change: two at once would forget one of them."""
        self._has_read = False
        """Whether the store has told which workers drain. Until then a change would overwrite what it has."""
        self._reading: asyncio.Task[None] | None = None
        try:
            self._take(store.take_over())
        except Exception as error:  # whatever the store raises, the Scheduler must start
            logger.error("it cannot be read yet which workers drain, so all get requests: %r", error)
            self._reading = asyncio.create_task(self._read_later())

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def change(self, ask: DrainAsk) -> DrainAnswer:
        """Raises NotFound for a worker that neither reports nor drains, Conflict for the last one of its pool without
        `force`, and StateUnavailable if the change cannot be stored.
        """
        workers = self._state.workers
        async with self._changing:
            await self._read()
            was_draining = ask.worker in workers.drains.workers
            if ask.worker not in workers.by_id and not was_draining:
                raise NotFound(f"no worker '{ask.worker}' reports", "worker", "worker_not_found")
            if was_draining == ask.drains:
                return DrainAnswer(was_draining=was_draining)
            if ask.drains and not ask.force and self._is_last(ask.worker):
                raise Conflict(
                    f"'{ask.worker}' is the last worker of its pool that does not drain: the other pool would do all "
                    "of its work, as far as it can. To drain it all the same, use --force (`force` of the route)",
                    "worker",
                    "last_worker_of_pool",
                )
            changed = workers.drains.with_change(ask.worker, workers.by_id, drains=ask.drains)
            try:
                await asyncio.to_thread(self._write, changed)
            except StateUnavailable:
                raise
            except Exception as error:  # whatever the store raises: the drain would not outlive this process
                raise StateUnavailable(f"the drain cannot be stored in Ray: {error}", RETRY_AFTER_S) from error
            workers.drain(changed)
            logger.warning("worker %s %s", ask.worker, "drains" if ask.drains else "gets requests again")
            return DrainAnswer(was_draining=was_draining)

    def _write(self, workers: list[WorkerId]) -> None:
        """Raises StateUnavailable if a newer Scheduler exists, which may have read the store before this change."""
        self._require_newest()
        self._store.write(workers)
        self._require_newest()

    def _require_newest(self) -> None:
        if self._registry.highest_epoch() > self._store.epoch:
            raise StateUnavailable("a newer Scheduler has taken over, and must be asked again", RETRY_AFTER_S)

    async def _read_later(self) -> None:
        while not self._has_read:
            await asyncio.sleep(RETRY_AFTER_S)
            with suppress(StateUnavailable):
                async with self._changing:
                    await self._read()

    async def _read(self) -> None:
        """Does nothing once the store has been read. Raises StateUnavailable if it cannot be read."""
        if self._has_read:
            return
        try:
            kept = await asyncio.to_thread(self._store.take_over)
        except Exception as error:  # whatever the store raises: a change would overwrite what it has
            raise StateUnavailable(f"Ray does not tell which workers drain: {error}", RETRY_AFTER_S) from error
        self._take(kept)

    def _take(self, kept: list[WorkerId]) -> None:
        """What the store has counts. This Scheduler has changed nothing before."""
        if kept:
            logger.warning("workers that an operator drains: %s", ", ".join(kept))
        self._state.workers.drain(kept)
        self._has_read = True

    def _is_last(self, worker: WorkerId) -> bool:
        """Whether no other worker of the pool would get requests. Workers in quarantine get none while the pool has
        others.
        """
        workers, now = self._state.workers, asyncio.get_running_loop().time()
        pool, quarantined = workers.by_id[worker].pool, workers.quarantined.of(now)
        live = [one.worker for one in workers.live(now) if one.pool is pool]
        serving = [one for one in live if one not in quarantined] or live
        return all(one == worker or one in workers.drains.workers for one in serving)
