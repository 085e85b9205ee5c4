"""DrainKeeper: has a drain of a worker outlive the Scheduler, and puts it into effect.

A change is stored before it counts. So whoever gets an answer knows that a successor of this Scheduler keeps the drain.
"""

import asyncio
import logging

from cluster.errors import Conflict, NotFound, StateUnavailable
from cluster.messages.ids import WorkerId
from cluster.messages.operations import DrainAnswer, DrainAsk
from cluster.worker_drains import WorkerDrains
from router.recording.recorded_state import State

logger = logging.getLogger("baton.scheduler")

RETRY_AFTER_S = 2.0
"""Retry-After of a drain that could not be stored, in seconds. Ray's store is back in some seconds, or not at all.
Shorter asks it more often; longer keeps an operator waiting.
"""


class DrainKeeper:
    def __init__(self, state: State, store: WorkerDrains) -> None:
        """Blocks until the store has told which workers drain. A store that fails has no drains."""
        self._state = state
        self._store = store
        self._changing = asyncio.Lock()
        """Held during a change: two at once would forget one of them."""
        try:
            kept = store.read()
        except Exception as error:  # whatever the store raises, the Scheduler must start
            logger.error("it cannot be read which workers drain, so all get requests: %r", error)
            kept = []
        if kept:
            logger.warning("workers that an operator drains: %s", ", ".join(kept))
        state.workers.drain(kept)

    async def change(self, ask: DrainAsk) -> DrainAnswer:
        """Raises NotFound for a worker that does not report, Conflict for the last one of its pool without `force`, and
        StateUnavailable if the change cannot be stored.
        """
        workers = self._state.workers
        async with self._changing:
            was_draining = ask.worker in workers.drains.workers
            if was_draining == ask.drains:
                return DrainAnswer(was_draining=was_draining)
            if ask.worker not in workers.by_id and not was_draining:
                raise NotFound(f"no worker '{ask.worker}' reports", "worker", "worker_not_found")
            if ask.drains and not ask.force and self._is_last(ask.worker):
                raise Conflict(
                    f"'{ask.worker}' is the last worker of its pool that does not drain: the other pool would do all "
                    "of its work, as far as it can. To drain it all the same, use --force (`force` of the route)",
                    "worker",
                    "last_worker_of_pool",
                )
            changed = workers.drains.with_change(ask.worker, workers.by_id, drains=ask.drains)
            try:
                await asyncio.to_thread(self._store.write, changed)
            except Exception as error:  # whatever the store raises: the drain would not outlive this process
                raise StateUnavailable(f"the drain cannot be stored in Ray: {error}", RETRY_AFTER_S) from error
            workers.drain(changed)
            logger.warning("worker %s %s", ask.worker, "drains" if ask.drains else "gets requests again")
            return DrainAnswer(was_draining=was_draining)

    def _is_last(self, worker: WorkerId) -> bool:
        """Whether no other worker of the pool would get requests."""
        workers, now = self._state.workers, asyncio.get_running_loop().time()
        pool, draining = workers.by_id[worker].pool, workers.drains.workers
        others = [one for one in workers.live(now) if one.pool is pool and one.worker != worker]
        return all(one.worker in draining for one in others)
