"""What the page on the admin port costs an ingress replica, while somebody looks at it.

    make bench-page

A replica makes at most one live document a second, however many pages are open. Its CPU time is measured for clusters
of several sizes, with 500 kept receipts of the path P->D: once with no receipt since the last document, and once with
NEW of them. The difference is what a request costs that ends while a page is open. While none is open, a request costs
no more than that its receipt is kept (bench/tracing_cost.py).

The Scheduler's answers are decoded as they come from its socket. What they cost the Scheduler is not in the figures.
"""

import argparse
import asyncio
import gc
from statistics import median
from time import process_time
from typing import cast

import msgspec

from api.server.cluster_port import ClusterPort
from api.server.receipt_log import ReceiptLog
from api.web import live
from api.web.recent_requests import MOST_COUNTED
from bench.tracing_cost import SESSIONS, SHORT, served
from cluster.messages.ids import Pool, RequestId, SloClass, WorkerId
from cluster.messages.operations import SchedulerStatus, WorkerCondition, WorkerStatus
from cluster.messages.transport import WorkerTransport
from cluster.messages.views import ClusterView, QueuedRequest, Readiness, WorkerView

SIZES = (4, 64, 1024)
"""Workers."""
ROUNDS = 50
NEW = SESSIONS
"""Receipts between two documents."""
NUM_QUEUED = 50


class EncodedCluster:
    """Answers for the Schedulers of a cluster whose pools are equal."""

    def __init__(self, num_workers: int) -> None:
        names = {pool: [WorkerId(f"{pool}-{n}") for n in range(num_workers // 2)] for pool in Pool}
        prefill = names[Pool.PREFILL]
        lines = [_line(worker, pool, len(prefill)) for pool, workers in names.items() for worker in workers]
        status = SchedulerStatus(
            epoch=1,
            up_s=3600.0,
            workers=lines,
            num_open=4 * num_workers,
            waiting={SloClass.INTERACTIVE: NUM_QUEUED},
            oldest_wait_s=1.0,
            unproved=[],
            num_unproved=0,
            distrusted=[],
            paths=[],
            num_quarantined=0,
        )
        links = dict.fromkeys(prefill)
        views = [
            WorkerView(
                worker=line.worker,
                pool=line.pool,
                num_placed=4,
                max_requests=256,
                host=line.host,
                transport=WorkerTransport(),
                links=links if line.pool is Pool.DECODE else {},
            )
            for line in lines
        ]
        queue = [
            QueuedRequest(
                request_id=RequestId(f"chatcmpl-{n:032x}"),
                slo_class=SloClass.INTERACTIVE,
                num_before=n,
                waited_s=1.0,
                wait_s=1.0,
                gives_up_s=10.0,
            )
            for n in range(NUM_QUEUED)
        ]
        self._statuses = msgspec.msgpack.encode([status])
        self._view = msgspec.msgpack.encode(ClusterView(workers=views))
        self._queue = msgspec.msgpack.encode(queue)
        self._readiness = Readiness(len(prefill), len(prefill), len(prefill) ** 2)

    async def statuses(self) -> list[SchedulerStatus]:
        return msgspec.msgpack.decode(self._statuses, type=list[SchedulerStatus])

    async def view(self) -> ClusterView:
        return msgspec.msgpack.decode(self._view, type=ClusterView)

    async def queue(self) -> list[QueuedRequest]:
        return msgspec.msgpack.decode(self._queue, type=list[QueuedRequest])

    async def readiness(self) -> Readiness:
        return self._readiness


def _line(worker: WorkerId, pool: Pool, num_links: int) -> WorkerStatus:
    return WorkerStatus(
        worker=worker,
        pool=pool,
        host="10.0.0.1",
        condition=WorkerCondition.READY,
        report_age_s=0.1,
        num_placed=4,
        num_open=4,
        num_running=4,
        num_waiting=0,
        num_leases=2,
        max_requests=256,
        kv_usage=0.5,
        kv_capacity_tokens=500_000,
        num_links=num_links if pool is Pool.DECODE else 0,
    )


async def made(documents: live.LiveDocuments) -> tuple[float, int]:
    """CPU seconds of a document, and its bytes."""
    began = process_time()
    document = await documents.get()
    return process_time() - began, len(document)


async def costs() -> dict[int, tuple[float, float, int]]:
    """CPU seconds of a document, those of each new receipt in it, and its bytes, by number of workers."""
    live.EVERY_S = 0.0  # each one who asks gets a new document
    log = ReceiptLog(MOST_COUNTED)
    pages = {
        size: live.LiveDocuments(cast(ClusterPort, EncodedCluster(size)), log.kept, "replica-0", "m") for size in SIZES
    }
    idle: dict[int, list[float]] = {size: [] for size in SIZES}
    busy: dict[int, list[float]] = {size: [] for size in SIZES}
    num_bytes = dict.fromkeys(SIZES, 0)
    while len(log.kept.newest(MOST_COUNTED)) < MOST_COUNTED:
        await served(log, SHORT)
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS + 1):
        await served(log, SHORT)
        for size, page in pages.items():
            with_new_s, _ = await made(page)
            without_s, num_bytes[size] = await made(page)
            if number:  # the first round warms up
                busy[size].append(with_new_s)
                idle[size].append(without_s)
    return {
        size: (median(idle[size]), (median(busy[size]) - median(idle[size])) / NEW, num_bytes[size]) for size in SIZES
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"CPU of a live document with {MOST_COUNTED} kept receipts, the median of {ROUNDS}")
    print(f"{'workers':>8} {'a document':>12} {'a new request':>14} {'size':>9}")
    for size, (document_s, request_s, num_bytes) in asyncio.run(costs()).items():
        print(f"{size:8} {document_s * 1e3:9.2f} ms {request_s * 1e6:11.1f} us {num_bytes / 1e3:6.0f} kB")


if __name__ == "__main__":
    main()
