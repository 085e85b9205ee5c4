"""Workers that report to the Scheduler of bench/scheduler/load.py: a process of its own, so that their reports take no
time of the process that measures latencies.

    python -m bench.scheduler.workers <address as JSON> <number of workers> <file of counts>

It prints a line as soon as every worker has reported, and ends with its standard input.
"""

import asyncio
import logging
import mmap
import random
import sys
from collections import deque
from pathlib import Path

import msgspec
import uvloop

from bench.placement import reports_of, with_samples
from cluster.clients.report_deltas import ReportDeltas
from cluster.messages.ids import Address
from cluster.messages.kv_events import KEY_BYTES, KvChange, KvEvents, KvTier
from cluster.messages.reports import REPORT_INTERVAL_S, WorkerLoad, WorkerReport
from cluster.network.open_files import allow_open_files
from cluster.rpc.connection import Connection, Service
from cluster.rpc.listener import MAX_OPEN_FILES, connect
from cluster.rpc.protocol import KV_EVENTS, REPORT

VARIANTS = 8
"""Reports that a worker sends in turn, each with samples of its own. More teaches the latency model more; fewer takes
less time to make.
"""


KEPT_BLOCKS = 500
"""KV blocks that a worker caches. From then on as many blocks leave its cache as come. More takes longer until then;
fewer makes the index smaller.
"""


class ReportingWorker:
    """One worker that reports, and sends KV events."""

    def __init__(self, connection: Connection, report: WorkerReport, place: int, counts: memoryview) -> None:
        """`counts` has the open requests of this worker at `place`, and the blocks per second of all workers at the
        end.
        """
        self._connection = connection
        self._chance = random.Random(report.worker)
        self._reports = [with_samples(report, self._chance) for _ in range(VARIANTS)]
        self._deltas = ReportDeltas()
        self._counts = counts
        self._place = place
        self._number = 0
        self._num_messages = 0
        self._blocks: deque[bytes] = deque()
        """Those that it caches, the oldest first."""

    async def report(self) -> None:
        self._number += 1
        number_open = self._counts[self._place]
        load = WorkerLoad(num_running=number_open, num_open=number_open)
        through = self._num_messages or None
        variant = self._reports[self._number % VARIANTS]
        report = msgspec.structs.replace(variant, load=load, kv_events_through=through)
        delta = self._deltas.delta(report)
        reply = await self._connection.call(REPORT, delta)
        if reply.wants_standing:
            reply = await self._connection.call(REPORT, self._deltas.whole(delta))
        self._deltas.reply(reply)

    async def go_on(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, REPORT_INTERVAL_S))
        while True:
            await self.report()
            per_s = self._counts[-1]
            if per_s:
                self._send_kv_events(round(per_s * REPORT_INTERVAL_S / (len(self._counts) - 1)))
            await asyncio.sleep(REPORT_INTERVAL_S)

    def _send_kv_events(self, number: int) -> None:
        """So many blocks have come into the cache, and the oldest have left it."""
        drawn = self._chance.randbytes(KEY_BYTES * number)
        stored = [drawn[at : at + KEY_BYTES] for at in range(0, len(drawn), KEY_BYTES)]
        self._blocks += stored
        removed = [self._blocks.popleft() for _ in range(len(self._blocks) - KEPT_BLOCKS)]
        changes = [KvChange(KvTier.GPU, True, stored), KvChange(KvTier.GPU, False, removed)]
        self._num_messages += 1
        message = KvEvents(self._reports[0].worker, self._num_messages, self._num_messages == 1, True, changes)
        self._connection.post(KV_EVENTS, message)


def shared_counts(file: Path, num_workers: int) -> memoryview:
    """The open requests of each worker, and the KV blocks per second that all workers store. The processes of the bench
    share them.
    """
    with file.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 4 * (num_workers + 1))).cast("i")


async def run(address: Address, num_workers: int, counts: memoryview) -> None:
    allow_open_files(MAX_OPEN_FILES)
    workers = []
    for place, report in enumerate(reports_of(num_workers)):
        workers.append(ReportingWorker(await connect(address, Service()), report, place, counts))
        await workers[-1].report()
    print("all have reported", flush=True)
    tasks = [asyncio.create_task(worker.go_on()) for worker in workers]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    logging.getLogger("baton").setLevel(logging.ERROR)
    _, encoded, num, path = sys.argv
    where = msgspec.json.decode(encoded, type=Address)
    uvloop.run(run(where, int(num), shared_counts(Path(path), int(num))))
