"""Workers that report to the Scheduler of bench/scheduler/load.py: a process of its own, so that their reports take no
time of the process that measures latencies.

    python -m bench.scheduler.workers <address as JSON> <number of workers> <file of counts>

It prints a line as soon as every worker has reported, and ends with its standard input.
"""

import asyncio
import mmap
import random
import sys
from pathlib import Path

import msgspec
import uvloop

from bench.placement import reports_of, with_samples
from cluster.clients.report_deltas import ReportDeltas
from cluster.messages.ids import Address
from cluster.messages.reports import REPORT_INTERVAL_S, WorkerLoad, WorkerReport
from cluster.network.open_files import allow_open_files
from cluster.rpc.connection import Connection, Service
from cluster.rpc.listener import MAX_OPEN_FILES, connect
from cluster.rpc.protocol import REPORT

VARIANTS = 8
"""Reports that a worker sends in turn, each with samples of its own. More teaches the latency model more; fewer takes
less time to make.
"""


class ReportingWorker:
    """One worker that reports."""

    def __init__(self, connection: Connection, report: WorkerReport, place: int, counts: memoryview) -> None:
        """`counts` has the open requests of this worker at `place`."""
        self._connection = connection
        self._chance = random.Random(report.worker)
        self._reports = [with_samples(report, self._chance) for _ in range(VARIANTS)]
        self._deltas = ReportDeltas()
        self._counts = counts
        self._place = place
        self._number = 0

    async def report(self) -> None:
        self._number += 1
        number_open = self._counts[self._place]
        load = WorkerLoad(num_running=number_open, num_open=number_open)
        report = msgspec.structs.replace(self._reports[self._number % VARIANTS], load=load)
        delta = self._deltas.delta(report)
        reply = await self._connection.call(REPORT, delta)
        if reply.wants_standing:
            reply = await self._connection.call(REPORT, self._deltas.whole(delta))
        self._deltas.reply(reply)

    async def go_on(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, REPORT_INTERVAL_S))
        while True:
            await self.report()
            await asyncio.sleep(REPORT_INTERVAL_S)


def shared_counts(file: Path, num_workers: int) -> memoryview:
    """An integer for each worker, which the processes of the bench share."""
    with file.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 4 * num_workers)).cast("i")


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
    _, encoded, num, path = sys.argv
    where = msgspec.json.decode(encoded, type=Address)
    uvloop.run(run(where, int(num), shared_counts(Path(path), int(num))))
