"""The whole application, as an ingress replica sees it: the Scheduler's views, and the metrics of all replicas."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import zip_longest

from msgspec.structs import replace

from api.server.cell_views import CellViews
from api.server.kept_receipts import KeptReceipt, KeptReceipts, shown_of
from cluster.messages.ids import CellName
from cluster.messages.operations import DrainAnswer, DrainAsk, SchedulerStatus
from cluster.messages.reports import REPORT_INTERVAL_S
from cluster.messages.views import CellsView, ClusterView, QueuedRequest, Readiness
from cluster.metrics.page import Scrape, render
from cluster.rpc.shared_answer import SharedAnswer
from cluster.serve_context import Deployment, broadcast, connected_handles

logger = logging.getLogger("baton.handles")
RECEIPTS_NAMED = "receipts_named"
"""Method of an ingress replica that gives its receipts of a name."""


class ClusterHandle:
    """The implementation of ClusterPort (api/server/cluster_port.py) by calls of the Schedulers and of all replicas."""

    def __init__(
        self,
        readiness: Callable[[], Awaitable[Readiness]],
        views: CellViews,
        deployments: Mapping[CellName, Sequence[Deployment]],
        max_age_s: float,
        model: str,
        receipts: KeptReceipts,
    ) -> None:
        """Must run while the replica starts (`connected_handles`). `deployments`: of each cell. `max_age_s`: age up to
        which a page of metrics, the cells, the links and the queue are given again: each costs other processes time,
        however many ask for it. `model`: the name of the served model, a label of metrics. `receipts`: of this
        replica.
        """
        self._receipts = receipts
        self._deployments = connected_handles([handle for cell in deployments.values() for handle in cell])
        cells = [cell for cell, handles in deployments.items() for _ in handles] if len(deployments) > 1 else []
        self._readiness = SharedAnswer(readiness, REPORT_INTERVAL_S)
        self._cells = SharedAnswer(views.cells, max_age_s)
        self._view = SharedAnswer(views.view, max_age_s)
        self._queue = SharedAnswer(views.queue, max_age_s)
        self._statuses = SharedAnswer(views.statuses, max_age_s)
        self._views = views
        self._metrics_page = SharedAnswer(lambda: metrics_page_of(self._deployments, [None, *cells], model), max_age_s)

    async def readiness(self) -> Readiness:
        return await self._readiness.get()

    async def cells(self) -> CellsView:
        return await self._cells.get()

    async def view(self) -> ClusterView:
        return await self._view.get()

    async def queue(self) -> list[QueuedRequest]:
        return await self._queue.get()

    async def statuses(self) -> list[SchedulerStatus]:
        return await self._statuses.get()

    async def drain(self, ask: DrainAsk) -> DrainAnswer:
        return await self._views.drain(ask)

    async def metrics_page(self) -> bytes:
        return await self._metrics_page.get()

    async def receipts(self, name: str) -> list[KeptReceipt]:
        own, *_ = self._deployments
        return together(name, self._receipts.named(name), await broadcast(own, RECEIPTS_NAMED, name))

    async def scrapes(self) -> list[Scrape]:
        """The metrics of every replica that answers in time."""
        return (await _scrapes_of(self._deployments))[0]


def together(name: str, own: list[KeptReceipt], answers: Sequence[object]) -> list[KeptReceipt]:
    """The receipts of a name, of this replica and of others, as `shown_of` shows them. `answers`: of all replicas,
    errors included.
    """
    of_all = {(kept.closed_at, kept.request_id): kept for kept in own}
    for answer in answers:
        if not isinstance(answer, list):
            logger.warning("an ingress replica has not said whether it has a receipt: %r", answer)
            continue
        of_all |= {(kept.closed_at, kept.request_id): kept for kept in answer}
    return shown_of([of_all[key] for key in sorted(of_all, reverse=True)], name)


async def metrics_page_of(
    deployments: Sequence[Deployment], cells: Sequence[CellName | None] = (), model: str = ""
) -> bytes:
    """Prometheus text: the metrics of every replica that answers in time, and the number of replicas that do not.
    `cells`: the cell of each deployment. Those without an entry belong to none. `model`: as in `render`.
    """
    scrapes, num_missing = await _scrapes_of(deployments, cells)
    return await asyncio.to_thread(render, scrapes, num_missing, model=model)


async def _scrapes_of(
    deployments: Sequence[Deployment], cells: Sequence[CellName | None] = ()
) -> tuple[list[Scrape], dict[str, int]]:
    """The scrapes, and the number of replicas of each deployment that gave none."""
    answers = await asyncio.gather(*(broadcast(handle, "scrape") for handle in deployments))
    num_missing, scrapes = {}, list[Scrape]()
    for handle, replicas, cell in zip_longest(deployments, answers, cells):
        missing = [repr(answer) for answer in replicas if not isinstance(answer, Scrape)]
        if missing:
            logger.warning("%d replicas of %s gave no metrics: %s", len(missing), handle.deployment_name, missing)
        num_missing[handle.deployment_name] = len(missing)
        scrapes += [replace(answer, cell=cell) for answer in replicas if isinstance(answer, Scrape)]
    return scrapes, num_missing
