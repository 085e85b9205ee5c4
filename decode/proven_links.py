"""ProvenLinks: with which prefill workers a decode worker has proved a handoff, and how fast the links are that it has
measured.

The first pull between two engines connects them, which takes seconds that no request should pay for. So a link counts
only once a real handoff over it has worked; until then the pair gets no requests. The Scheduler says which link is
proved next, and which is measured (router/links/link_plan.py): one at a time. An attempt that fails has no consequence
here, since the Scheduler learns of it by the next report and gives another order.
"""

import asyncio
import logging
from typing import Protocol, TypeVar

from cluster.errors import ServingError
from cluster.messages.ids import WorkerId
from cluster.messages.reports import LinkOrder
from cluster.messages.transport import LinkSpeed

Known = TypeVar("Known")

logger = logging.getLogger("baton.links")

PROOF_TIMEOUT_S = 15.0
"""Seconds that an attempt to prove a link may take. vLLM's pull has no timeout, and a first handoff takes up to 3 s.
Longer tries the next prefill worker later if one hangs; shorter fails first handoffs on busy machines.
"""
MEASURE_TIMEOUT_S = 15.0
"""Seconds that a measurement may take. Longer delays the proofs of other links; shorter fails measurements of slow
links.
"""
MOST_DOUBTFUL = 64
"""Links whose speeds, and failures whose causes, are kept while the link is not proved. More keeps what is known of
prefill workers that are gone; fewer loses speeds while many links are doubtful, and repeats lines of the log.
"""

MOST_WORDS = 300
"""Characters of a cause that are kept. More takes bytes of each report of the links; fewer cuts the end off, where the
error of a library often is.
"""


class Probe(Protocol):
    async def prove(self, prefill: WorkerId) -> None:
        """Raises ServingError when the handoff fails."""
        ...

    async def measure(self, prefill: WorkerId) -> LinkSpeed | None:
        """None if the speed could not be measured. Raises ServingError."""
        ...


class ProvenLinks:
    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._proved: dict[WorkerId, LinkSpeed | None] = {}
        self._doubtful: dict[WorkerId, LinkSpeed | None] = {}
        """Links that must be proved anew, with their speeds, the last one last."""
        self._suspected = False
        """Whether a pull over the link that is being probed has hung or failed meanwhile."""
        self._probing: tuple[WorkerId, asyncio.Task[None]] | None = None
        self._failures: dict[WorkerId, str] = {}
        """Why the last attempt with a prefill worker failed, the last one last."""

    @property
    def proved(self) -> dict[WorkerId, LinkSpeed | None]:
        """Speed by prefill worker, None for a link that was not measured here. Another object after each change."""
        return self._proved

    @property
    def probing(self) -> WorkerId | None:
        """The prefill worker to which a link is proved or measured now."""
        return self._probing[0] if self._probing is not None else None

    @property
    def failures(self) -> dict[WorkerId, str]:
        """Why the last attempts have failed, by prefill worker. Another object after each change."""
        return self._failures

    def obey(self, order: LinkOrder | None, gone: tuple[WorkerId, ...] = ()) -> None:
        """Do what the Scheduler says. `gone`: prefill workers that do not come back. An order is ignored while another
        one is carried out.
        """
        if gone:
            self._proved = {worker: speed for worker, speed in self._proved.items() if worker not in gone}
            self._failures = {worker: why for worker, why in self._failures.items() if worker not in gone}
        if order is not None and self._probing is None:
            self._suspected = False
            self._probing = order.prefill, asyncio.create_task(self._find_out(order))

    def suspect(self, worker: WorkerId) -> None:
        """A pull from this worker hung or failed: its link must be proved anew. The speed of the link is kept."""
        if worker == self.probing:
            self._suspected = True
        if worker in self._proved:
            _keep(self._doubtful, worker, self._proved[worker])
            self._proved = {other: speed for other, speed in self._proved.items() if other != worker}
            logger.warning("no requests from prefill worker %s until its link has been proved anew", worker)

    async def _find_out(self, order: LinkOrder) -> None:
        worker = order.prefill
        try:
            if worker not in self._proved:
                async with asyncio.timeout(PROOF_TIMEOUT_S):
                    await self._probe.prove(worker)
                if self._suspected:
                    return
                self._proved = self._proved | {worker: self._doubtful.pop(worker, None)}
                self._failures = {other: why for other, why in self._failures.items() if other != worker}
            if order.measures:
                await self._measure(worker)
        except (ServingError, TimeoutError) as error:
            self._warn(worker, _reason(error))
        finally:
            self._probing = None

    def _warn(self, worker: WorkerId, why: str) -> None:
        """Log a cause once: attempts follow each other every few seconds."""
        if self._failures.get(worker) != why[:MOST_WORDS]:
            logger.warning("no link to prefill worker %s yet: %s", worker, why)
        failures = dict(self._failures)
        _keep(failures, worker, why[:MOST_WORDS])
        self._failures = failures

    async def _measure(self, worker: WorkerId) -> None:
        try:
            async with asyncio.timeout(MEASURE_TIMEOUT_S):
                speed = await self._probe.measure(worker)
        except (ServingError, TimeoutError) as error:
            logger.warning("link to prefill worker %s not measured: %s", worker, _reason(error))
            return
        if speed is not None and worker in self._proved:
            self._proved = self._proved | {worker: speed}
        elif speed is not None:
            _keep(self._doubtful, worker, speed)


def _keep(several: dict[WorkerId, Known], worker: WorkerId, known: Known) -> None:
    """Add what is known of a worker, and forget the oldest above MOST_DOUBTFUL."""
    several.pop(worker, None)
    several[worker] = known
    if len(several) > MOST_DOUBTFUL:
        del several[next(iter(several))]


def _reason(error: Exception) -> str:
    return "it took too long" if isinstance(error, TimeoutError) else str(error)
