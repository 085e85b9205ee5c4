"""What the Scheduler costs with a thousand workers: its process, its sockets and its messages.

    make bench-scheduler

A Scheduler process (bench/scheduler/server.py) has one connection to each worker, half of which decode and have a link
from each prefill worker, and one to each ingress. Each worker reports four times a second with samples of its steps.
The first figure is the CPU time that the reports take without requests, the second one beside open requests, and the
third one with KV events as well. Then requests come and end at a rate. The latency of a placement is that at the
ingress. It includes the time of this process, which plays all ingresses. Another process (bench/scheduler/workers.py)
plays the workers. At last come long prompts: first half as many as the workers compute, which are all placed, and then
three times as many, so that two of three are refused. CPU times are those of the Scheduler process alone.
"""

import argparse
import asyncio
import itertools
import logging
import random
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from math import inf
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import psutil
import uvloop

from bench.goals.scheduler_cost import missed
from bench.goals.verdict import conclude
from bench.placement import BLOCK, reports_of
from bench.scheduler.workers import KEPT_BLOCKS, shared_counts
from cluster.clients.event_sender import EventSender
from cluster.clients.scheduler_client import SchedulerClient
from cluster.clients.scheduler_outbox import SchedulerOutbox
from cluster.messages.ids import Address, IngressId, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest
from cluster.messages.scheduler_events import FirstToken, PrefillDone, RequestClosed, SchedulerEvent
from cluster.network.secret import establish_secret
from cluster.repository import REPO_ROOT
from cluster.rpc.connection import Connection, ConnectionLost
from cluster.rpc.protocol import HEARD, OPEN_REQUESTS
from cluster.scheduler_registry import SchedulerRecord
from router.garbage import collect_rarely

INGRESSES = 16
PROMPT_TOKENS = 512
KV_BLOCKS_PER_S = 100_000
"""KV blocks that all workers store per second in the part with KV events: prompts of 1.6 million tokens."""
LONG_PROMPT_TOKENS = 8_000
"""Tokens of the prompts that overload the workers. One takes a worker some 0.8 s, by the samples of its steps."""
COMPUTED_PER_S = 1.2
"""Such prompts that a worker computes per second."""
OVERWHELMED = "the Scheduler answered no ping for some seconds, so its peers have given up their connections"
MOST_ASKED = 256
"""Placements without overload that are waited for at a time. Where the Scheduler makes fewer than are asked for, more
would only lengthen their latency; fewer may not keep the Scheduler busy.
"""
FILLED_S = 6.0
"""Time after which the first of them reach their deadlines in the queue, in seconds."""
SAMPLED_S = 10.0
"""Time over which CPU is measured, in seconds. Longer makes the figures steadier and takes longer."""


class Figures(NamedTuple):
    idle: float
    """CPUs that the reports take without requests."""
    busy: float
    """CPUs that the reports take beside open requests."""
    storing: float
    """CPUs that the reports and the KV events take beside them."""
    placed_per_s: float
    placing: float
    """CPUs beside that rate, reports included."""
    p50_ms: float
    p99_ms: float
    """Latency of a placement."""
    long_per_s: float
    """Placements of long prompts at half of what fits."""
    placing_long: float
    """CPUs beside them, reports included."""
    refused_per_s: float
    """Refusals at three times of what fits."""
    overloaded_per_s: float
    """Placements beside them."""
    refusing: float
    """CPUs beside both, reports included."""

    @property
    def block_s(self) -> float:
        """CPU seconds of the KV events of a block that comes and of one that goes."""
        return max(0.0, self.storing - self.busy) / KV_BLOCKS_PER_S

    @property
    def placement_s(self) -> float:
        """CPU seconds of a placement with its events."""
        return max(0.0, self.placing - self.busy) / max(1.0, self.placed_per_s)

    @property
    def long_s(self) -> float:
        """CPU seconds of a placement of a long prompt with its events."""
        return max(0.0, self.placing_long - self.busy) / max(1.0, self.long_per_s)

    @property
    def refusal_s(self) -> float:
        """CPU seconds of a refusal, if the placements beside it cost what those of long prompts cost."""
        placing = self.overloaded_per_s * self.long_s
        return max(0.0, self.refusing - self.busy - placing) / max(1.0, self.refused_per_s)


class OpenCounts:
    """How many requests each worker has, where the process of the workers reads it (bench/scheduler/workers.py)."""

    def __init__(self, counts: memoryview, workers: list[WorkerId]) -> None:
        self._counts = counts
        self._places = {worker: place for place, worker in enumerate(workers)}

    def send_kv_events(self, blocks_per_s: int) -> None:
        """Have the workers send KV events of so many stored blocks per second, all of them together."""
        self._counts[-1] = blocks_per_s

    def add(self, worker: WorkerId, number: int) -> None:
        self._counts[self._places[worker]] += number


class Ingress:
    """One ingress that asks for placements and tells of its requests."""

    def __init__(self, client: SchedulerClient, open_on: OpenCounts, latencies: list[float]) -> None:
        self._client = client
        self._outbox = SchedulerOutbox(IngressId(secrets.token_hex(8)))
        self._open_on = open_on
        self._latencies = latencies
        self._events = EventSender()
        client.on_connected = self._on_connected
        client.service.on_post(HEARD, lambda _, through: self._outbox.heard(through))

    def _on_connected(self, connection: Connection, address: Address) -> None:
        open_requests, kept = self._outbox.connected(address.process, 0.0)
        connection.post(OPEN_REQUESTS, open_requests)
        self._events.connected(connection, kept)

    async def connect(self) -> None:
        await self._client.address_of(WorkerId("nobody"))

    async def place(self, number: int, num_prompt: int = PROMPT_TOKENS) -> tuple[RequestId, Placement] | None:
        """A request whose prompt has the usual length decodes from then on. None if the request is refused."""
        request = PlacementRequest(
            request_id=RequestId(f"r{number}"),
            num_prompt_tokens=num_prompt,
            block_hashes=new_hashes(num_prompt),
            max_output_tokens=1000,
        )
        self._outbox.asks(request)
        began = perf_counter()
        placed = await self._client.place(request)
        self._latencies.append(perf_counter() - began)
        if not isinstance(placed, Placement):
            self.tell(RequestClosed(request_id=request.request_id))
            return None
        self._open_on.add(placed.generating, 1)
        if num_prompt == PROMPT_TOKENS:
            self.computed(request.request_id)
        return request.request_id, placed

    def computed(self, request: RequestId) -> None:
        self.tell(PrefillDone(request_id=request))
        self.tell(FirstToken(request_id=request))

    def close(self, request: RequestId, placed: Placement) -> None:
        self._open_on.add(placed.generating, -1)
        self.tell(RequestClosed(request_id=request, num_output_tokens=100, ttft_s=0.2, tpot_s=0.02))

    def tell(self, event: SchedulerEvent) -> None:
        self._events.send(self._outbox.put(event, 0.0))


def new_hashes(num_prompt: int) -> list[bytes]:
    """Of a prompt that nobody has sent before."""
    drawn = random.randbytes(8 * (num_prompt // BLOCK))
    return [drawn[at : at + 8] for at in range(0, len(drawn), 8)]


@asynccontextmanager
async def child(module: str, *arguments: str) -> AsyncIterator[Process]:
    """A process that ends with its standard input."""
    command = (sys.executable, "-m", module, *arguments)
    process = await asyncio.create_subprocess_exec(*command, cwd=REPO_ROOT, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def first_line_of(process: Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError("a process of the bench has ended")
    return line


async def measure(num_workers: int, num_open: int, rate: float) -> Figures:
    async with AsyncExitStack() as stack:
        counted = Path(stack.enter_context(TemporaryDirectory())) / "open"
        counted.write_bytes(bytes(4 * (num_workers + 1)))
        scheduler = await stack.enter_async_context(child("bench.scheduler.server"))
        address = msgspec.json.decode(await first_line_of(scheduler), type=Address)
        as_json = msgspec.json.encode(address).decode()
        workers = await stack.enter_async_context(
            child("bench.scheduler.workers", as_json, str(num_workers), str(counted))
        )
        await first_line_of(workers)
        counts = shared_counts(counted, num_workers)
        open_on = OpenCounts(counts, [report.worker for report in reports_of(num_workers)])
        return await measured(address, psutil.Process(scheduler.pid), open_on, num_workers, num_open, rate)


async def measured(
    address: Address, scheduler: psutil.Process, open_on: OpenCounts, num_workers: int, num_open: int, rate: float
) -> Figures:
    async def find() -> SchedulerRecord:
        return SchedulerRecord(epoch=1, address=address, node="here")

    async def cpus(after_s: float = 0.0) -> float:
        await asyncio.sleep(after_s)
        before, began = sum(scheduler.cpu_times()[:2]), perf_counter()
        await asyncio.sleep(SAMPLED_S)
        return (sum(scheduler.cpu_times()[:2]) - before) / (perf_counter() - began)

    latencies: list[float] = []
    ingresses = [Ingress(SchedulerClient(find), open_on, latencies) for _ in range(INGRESSES)]
    await asyncio.gather(*(ingress.connect() for ingress in ingresses))
    note("the workers report")
    idle = await cpus()
    note("requests are opened")
    opened = await fill(ingresses, num_open)
    collect_rarely()  # the pauses of this process are not the Scheduler's
    note("the requests are open")
    busy = await cpus()
    note("the workers send KV events")
    open_on.send_kv_events(KV_BLOCKS_PER_S)
    storing = await cpus(after_s=KEPT_BLOCKS * num_workers / KV_BLOCKS_PER_S)
    open_on.send_kv_events(0)
    note("requests come and end")
    latencies.clear()
    placing = asyncio.create_task(cpus())
    num_placed = await turn_over(ingresses, opened, rate, placing)
    percentiles = quantiles(latencies, n=100)
    note("long prompts come")
    placing_long = asyncio.create_task(cpus(after_s=FILLED_S))
    _, num_long = await send_long(ingresses, COMPUTED_PER_S * num_workers / 2, placing_long)
    note("more long prompts come than the workers compute")
    refusing = asyncio.create_task(cpus(after_s=FILLED_S))
    num_refused, num_placed_beside = await send_long(ingresses, 3 * COMPUTED_PER_S * num_workers, refusing)
    return Figures(
        idle,
        busy,
        storing,
        num_placed / SAMPLED_S,
        await placing,
        1e3 * percentiles[49],
        1e3 * percentiles[98],
        num_long / SAMPLED_S,
        await placing_long,
        num_refused / SAMPLED_S,
        num_placed_beside / SAMPLED_S,
        await refusing,
    )


def note(what: str) -> None:
    """Tell the user where the run is."""
    print(f"... {what}", file=sys.stderr, flush=True)


Opened = list[tuple[Ingress, RequestId, Placement]]


async def fill(ingresses: list[Ingress], num_open: int) -> Opened:
    """Open requests, 256 at a time."""
    opened: Opened = []
    number = 0
    while len(opened) < num_open:
        asked = [(ingresses[n % len(ingresses)], n) for n in range(number, number + 256)]
        number += 256
        for (ingress, _), placed in zip(asked, await asyncio.gather(*(i.place(n) for i, n in asked)), strict=True):
            if placed is not None:
                opened.append((ingress, *placed))
        if number > 2 * num_open + 10_000:
            raise RuntimeError(f"{len(opened)} of {number} requests were placed")
    return opened


async def turn_over(ingresses: list[Ingress], opened: Opened, rate: float, until: "asyncio.Task[float]") -> int:
    """Close and place requests at a rate, as long as few wait for their answer. Returns how many were placed."""
    chance, number, num_placed, is_lost = random.Random(0), 10_000_000, 0, False
    pending: set[asyncio.Task[None]] = set()

    async def one(at: int, number: int) -> None:
        nonlocal num_placed, is_lost
        ingress, request, placement = opened[at]
        try:
            ingress.close(request, placement)
            placed = await ingress.place(number)
        except ConnectionLost:
            is_lost = True
            return
        if placed is not None:
            opened[at] = (ingress, *placed)
            num_placed += 1

    began = perf_counter()
    num_asked = 0
    while not until.done():
        if is_lost:
            raise SystemExit(OVERWHELMED)
        due = int((perf_counter() - began) * rate)
        for at in chance.sample(range(len(opened)), max(0, min(due - num_asked, MOST_ASKED - len(pending)))):
            number += 1
            task = asyncio.create_task(one(at, number))
            pending.add(task)
            task.add_done_callback(pending.discard)
        num_asked = due
        await asyncio.sleep(0.002)
    await asyncio.gather(*pending)
    return num_placed


async def send_long(ingresses: list[Ingress], rate: float, until: "asyncio.Task[Any]") -> tuple[int, int]:
    """Ask for long prompts at a rate. Returns how many were refused and placed from FILLED_S on. A request ends when it
    is predicted to have its first token.
    """
    answered: Counter[bool] = Counter()
    pending: set[asyncio.Task[None]] = set()
    began, numbers, is_lost = perf_counter(), itertools.count(secrets.randbits(60)), False

    async def one(number: int) -> None:
        nonlocal is_lost
        ingress = ingresses[number % len(ingresses)]
        try:
            answer = await ingress.place(number, LONG_PROMPT_TOKENS)
        except ConnectionLost:
            is_lost = True
            return
        if perf_counter() - began >= FILLED_S and not until.done():
            answered[answer is not None] += 1
        if answer is not None:
            request, placement = answer
            await asyncio.sleep(placement.predicted.ttft_s if placement.predicted else 0.0)
            with suppress(ConnectionLost):
                ingress.computed(request)
                ingress.close(request, placement)

    num_asked = 0
    while not until.done():
        if is_lost:
            raise SystemExit(OVERWHELMED)
        due = int((perf_counter() - began) * rate)
        for _ in range(due - num_asked):
            task = asyncio.create_task(one(next(numbers)))
            pending.add(task)
            task.add_done_callback(pending.discard)
        num_asked = due
        await asyncio.sleep(0.002)
    await asyncio.gather(*pending)
    return answered[False], answered[True]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, help="workers (default: 1000)")
    parser.add_argument("--open", type=int, default=60_000, help="open requests (default: 60000)")
    parser.add_argument("--rate", type=float, default=6000.0, help="placements per second to ask for (default: 6000)")
    asked = parser.parse_args()
    logging.getLogger("baton").setLevel(logging.ERROR)
    establish_secret(lambda own: own)
    figures = uvloop.run(measure(asked.workers, asked.open, asked.rate))
    print(f"{asked.workers} workers, {asked.open} open requests, {INGRESSES} ingresses; CPUs of the Scheduler process")
    print(f"  reports alone                 {figures.idle:6.2f}")
    print(f"  reports beside open requests  {figures.busy:6.2f}")
    per_block = f"{1e6 * figures.block_s:.1f} us for a block that comes and one that goes, {KV_BLOCKS_PER_S}/s"
    print(f"  and KV events                 {figures.storing:6.2f}: {per_block}")
    print(f"  {figures.placed_per_s:6.0f} placements/s, reports   {figures.placing:6.2f}")
    print(f"  latency of a placement        {figures.p50_ms:6.2f} ms at p50, {figures.p99_ms:.2f} ms at p99")
    print(f"  {figures.long_per_s:6.0f} long placements/s, reports{figures.placing_long:6.2f}")
    print(
        f"  {figures.refused_per_s:6.0f} refusals/s beside {figures.overloaded_per_s:.0f} placements/s, reports"
        f" {figures.refusing:6.2f}"
    )
    placement_us, long_us, refusal_us = 1e6 * figures.placement_s, 1e6 * figures.long_s, 1e6 * figures.refusal_s
    print(f"  CPU time of a placement of {PROMPT_TOKENS} tokens, with its events   {placement_us:6.0f} us")
    print(f"  CPU time of a placement of {LONG_PROMPT_TOKENS} tokens, with its events  {long_us:6.0f} us")
    print(f"  CPU time of a refusal of {LONG_PROMPT_TOKENS} tokens                     {refusal_us:6.0f} us")
    share = refusal_us / long_us if long_us else inf
    conclude(missed(figures.busy, figures.placed_per_s, figures.p99_ms, share))


if __name__ == "__main__":
    main()
