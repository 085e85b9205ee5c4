"""The upkeep of the ledger: partitions are made ahead and dropped, sums of days that no budget needs are deleted, and
the requests of processes that are gone end as lost. Every replica may run it at any time; a lock lets one of them do
the work.
"""

import asyncio
import logging
from collections.abc import Callable

from api.metering.recorder import LOST_AFTER_S
from api.state.postgres.ledger.ledger_jobs import LedgerJobs

logger = logging.getLogger("baton.metering")


class LedgerUpkeep:
    def __init__(self, jobs: LedgerJobs, keep_days: float | None, beating_since: Callable[[], float | None]) -> None:
        """`keep_days`: days for which rows are kept at least; None keeps them forever. `beating_since`: of this
        process's recorder.
        """
        self._jobs = jobs
        self._keep_days = keep_days
        self._beating_since = beating_since

    async def run(self) -> None:
        """Raises StateUnavailable."""
        if made := await self._jobs.make_partitions():
            logger.info("%d partitions of the ledger are made", made)
        if self._keep_days is not None:
            for name in await self._jobs.drop_partitions(self._keep_days):
                logger.warning("the usage in %s is deleted: it is older than %g days", name, self._keep_days)
        await self._jobs.drop_day_sums()
        if self._may_reap():
            reaped = await self._jobs.reap(LOST_AFTER_S)
            if reaped.ended:
                logger.warning("%d requests of ingress processes that are gone are lost", reaped.lost)

    def _may_reap(self) -> bool:
        """After an outage of PostgreSQL, each process first gets the time to say that it lives."""
        since = self._beating_since()
        return since is not None and asyncio.get_running_loop().time() - since >= LOST_AFTER_S
