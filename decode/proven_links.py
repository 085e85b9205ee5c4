"""ProvenLinks: with which prefill workers a decode worker has proved a handoff, and how fast each link is.

The first pull between two engines connects them, which takes seconds that no request should pay for. So a link counts
only once a real handoff over it has worked; until then the pair gets no requests. A failed attempt is repeated at the
next update that names the prefill worker. A link is measured before it first counts, while no request disturbs it. A
link that could not be measured counts all the same, and is measured again a few times.
"""

import asyncio
import logging
from collections import Counter
from typing import Protocol

from cluster.errors import ServingError
from cluster.messages.ids import WorkerId
from cluster.messages.transport import LinkSpeed

logger = logging.getLogger("baton.links")

PROOF_TIMEOUT_S = 15.0
"""Seconds that an attempt to prove a link may take. vLLM's pull has no timeout, and a first handoff takes up to 3 s.
Longer tries a prefill worker that hung once later again; shorter fails first handoffs on busy machines.
"""
MEASURE_TIMEOUT_S = 15.0
"""Seconds that a measurement may take. Longer delays the measurements of other links; shorter fails those of slow
links.
"""
NUM_MEASUREMENTS = 3
"""Attempts to measure a link, each of several prefills. More disturbs busy links without end in sight; fewer leaves
more links with an unknown speed.
"""
FORGET_AFTER_UPDATES = 60
"""Updates in a row without a prefill worker after which it is forgotten. Every report of this decode worker brings one.
Fewer proves links anew after a pause of the Scheduler; more keeps workers that are gone.
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
        self._proved: set[WorkerId] = set()
        self._suspected: set[WorkerId] = set()
        """Prefill workers whose pulls hung or failed since the last attempt began."""
        self._speeds: dict[WorkerId, LinkSpeed] = {}
        self._num_measured: dict[WorkerId, int] = {}
        self._probing: dict[WorkerId, asyncio.Task[None]] = {}
        self._failures: dict[WorkerId, str] = {}
        """Why the last attempt with a prefill worker failed."""
        self._absent: Counter[WorkerId] = Counter()
        """Updates in a row that did not name a known worker."""
        self._measuring = asyncio.Lock()
        """One measurement at a time: two would share the node's network."""

    @property
    def proved(self) -> dict[WorkerId, LinkSpeed | None]:
        """Speed by prefill worker. None if the speed is not known."""
        return {worker: self._speeds.get(worker) for worker in self._proved}

    def update(self, live: frozenset[WorkerId]) -> None:
        """Probe links that are not proved or not measured, and forget workers that have been gone for long. A worker
        that is missing for a moment, because the Scheduler was busy, keeps its link: a new process has a new name.
        """
        self._absent = Counter({worker: self._absent[worker] + 1 for worker in self._known() - live})
        for worker, num_updates in self._absent.items():
            if num_updates >= FORGET_AFTER_UPDATES:
                self._proved.discard(worker)
                self._speeds.pop(worker, None)
                self._num_measured.pop(worker, None)
        self._failures = {worker: why for worker, why in self._failures.items() if worker in live}
        self._suspected &= live
        for worker in live - self._probing.keys():
            if worker not in self._proved or self._can_measure(worker):
                self._probing[worker] = asyncio.create_task(self._find_out(worker))

    def _known(self) -> set[WorkerId]:
        return self._proved | self._num_measured.keys()

    def suspect(self, worker: WorkerId) -> None:
        """A pull from this worker hung or failed: its link must be proved anew. The speed of the link is kept, because
        measuring takes many times as long, and the pair would get no requests meanwhile.
        """
        self._suspected.add(worker)
        if worker in self._proved:
            self._proved.remove(worker)
            logger.warning("no requests from prefill worker %s until its link has been proved anew", worker)

    def _can_measure(self, worker: WorkerId) -> bool:
        return worker not in self._speeds and self._num_measured.get(worker, 0) < NUM_MEASUREMENTS

    async def _find_out(self, worker: WorkerId) -> None:
        self._suspected.discard(worker)
        try:
            if worker not in self._proved:
                async with asyncio.timeout(PROOF_TIMEOUT_S):
                    await self._probe.prove(worker)
            if self._can_measure(worker):
                await self._measure(worker)
        except (ServingError, TimeoutError) as error:
            self._warn(worker, _reason(error))
        else:
            if worker not in self._suspected:
                self._proved.add(worker)
            self._failures.pop(worker, None)
        finally:
            del self._probing[worker]

    def _warn(self, worker: WorkerId, why: str) -> None:
        """Log a cause once: attempts follow each other several times a second."""
        if self._failures.get(worker) != why:
            self._failures[worker] = why
            logger.warning("no link to prefill worker %s yet: %s", worker, why)

    async def _measure(self, worker: WorkerId) -> None:
        self._num_measured[worker] = self._num_measured.get(worker, 0) + 1
        try:
            async with self._measuring, asyncio.timeout(MEASURE_TIMEOUT_S):
                speed = await self._probe.measure(worker)
        except (ServingError, TimeoutError) as error:
            logger.warning("link to prefill worker %s not measured: %s", worker, _reason(error))
        else:
            if speed is not None:
                self._speeds[worker] = speed


def _reason(error: Exception) -> str:
    return "it took too long" if isinstance(error, TimeoutError) else str(error)
