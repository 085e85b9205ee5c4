"""LiveDocuments: makes the document that the page polls, once for all who poll at about the same time."""

import asyncio
import time
from collections.abc import Callable

import msgspec

from api.server.cluster_port import ClusterPort
from api.server.kept_receipts import KeptReceipt, KeptReceipts
from api.web.live_document import FORM, ClusterLines, ClusterState, LiveDocument, cluster_lines
from api.web.recent_requests import MOST_COUNTED, EndedRequest, recent_requests
from cluster.errors import ServingError
from cluster.rpc.shared_answer import SharedAnswer

EVERY_S = 1.0
"""Age up to which a document is given again, in seconds. Shorter costs the Scheduler and this replica more, however
often pages ask; longer shows older figures.
"""
CLUSTER_TIMEOUT_S = 2.0
"""Time that the Scheduler has to answer, in seconds. Then the page is told that it does not, with what was known
before. Longer leaves the page without any answer while the Scheduler is away; shorter calls a busy Scheduler away.
"""
MOST_WITH_SPEEDS = 64
"""Workers of a cluster whose links are shown with their speeds. The Scheduler tells the speeds of all links at once:
more costs it milliseconds each time; fewer leaves the speeds to `baton probe`.
"""


class LiveDocuments:
    def __init__(
        self,
        cluster: ClusterPort,
        receipts: KeptReceipts,
        replica: str,
        model: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: gives Unix time."""
        self._cluster = cluster
        self._receipts = receipts
        self._replica = replica
        self._model = model
        self._clock = clock
        self._number = 0
        self._decoded: dict[int, tuple[KeptReceipt, EndedRequest]] = {}
        """The receipts of the last document, by the identity of what is kept, so that each is decoded once."""
        self._known: ClusterLines | None = None
        self._known_at: float | None = None
        self._shared = SharedAnswer(self._encoded, EVERY_S)

    async def get(self) -> bytes:
        """The document as JSON."""
        return await self._shared.get()

    async def _encoded(self) -> bytes:
        error = await self._look()
        now = self._clock()
        self._number += 1
        document = LiveDocument(
            form=FORM,
            number=self._number,
            replica=self._replica,
            model=self._model,
            at=now,
            every_s=EVERY_S,
            cluster=ClusterState(
                age_s=None if self._known_at is None else max(0.0, now - self._known_at), error=error, known=self._known
            ),
            requests=recent_requests(self._ended(), min(self._receipts.most, MOST_COUNTED), now),
        )
        return msgspec.json.encode(document)

    def _ended(self) -> list[EndedRequest]:
        """The latest requests, the newest first."""
        known, self._decoded = self._decoded, {}
        for kept in self._receipts.newest(MOST_COUNTED):
            self._decoded[id(kept)] = known.get(id(kept)) or (kept, EndedRequest(kept.receipt(), kept.closed_at))
        return [ended for _, ended in self._decoded.values()]

    async def _look(self) -> str | None:
        """Ask what the cluster is like now. Returns why that is not known."""
        try:
            async with asyncio.timeout(CLUSTER_TIMEOUT_S):
                statuses, queue, readiness = await asyncio.gather(
                    self._cluster.statuses(), self._cluster.queue(), self._cluster.readiness()
                )
                is_small = sum(len(status.workers) for status in statuses) <= MOST_WITH_SPEEDS
                view = await self._cluster.view() if is_small else None
        except ServingError as error:
            return str(error)
        except TimeoutError:
            return f"the Scheduler has not answered within {CLUSTER_TIMEOUT_S:g} s"
        self._known, self._known_at = cluster_lines(statuses, queue, readiness, view), self._clock()
        return None
