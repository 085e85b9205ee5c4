"""What the stimulus log costs the Scheduler: CPU time per placement with all its events, without a log and with one.

    make bench-replay

Both run in turns in one process, on the load of bench/placement.py: slices of the same requests, with the same events
and reports. `thread` is the event loop's CPU time, `writer` that of the thread which encodes and writes, and `log` what
both add to a placement without a log. `off twice` is a second run without a log, which shows what chance does. It
measures what would run here: compiled code (`baton compile`), or the sources (BATON_PURE_PYTHON=1).
"""

import argparse
import asyncio
import gc
import random
import statistics
import tempfile
import time
from pathlib import Path

from bench.placement import CASES, SLO, Case, fill_index, prompts_of, reports_of, with_samples
from cluster import compiled
from cluster.config.scheduler import StimulusLogConfig
from cluster.messages.ids import RequestId
from cluster.messages.placement import Placement, PlacementRequest
from cluster.messages.reports import REPORT_INTERVAL_S
from cluster.messages.scheduler_events import FirstToken, PrefillDone, RequestClosed
from router.recording.log_files import KEPT, StimulusLog
from router.recording.recorded_state import RecordedState, State
from router.recording.snapshot import capture
from router.state import RouterState

SLICE = 250
"""Requests of one side before it is the other one's turn."""
SLICES = 16


class Load:
    """One Scheduler and the requests that come to it."""

    def __init__(self, case: Case, plain: RouterState, state: State) -> None:
        self.state = state
        self._case, self._chance = case, random.Random(0)
        self._reports = reports_of(case.num_workers)
        self._prompts = prompts_of(case, self._chance)
        for report in self._reports:
            plain.handle(report, 0.0)
        fill_index(plain, self._reports, self._prompts, self._chance)
        self._now, self._number, self._next_report = 0.1, 0, 0.1
        self._open: list[RequestId] = []

    def slice(self) -> float:
        """CPU seconds of the thread that a slice has taken."""
        state, chance, took = self.state, self._chance, 0.0
        for _ in range(SLICE):
            self._now += chance.expovariate(self._case.rate_per_s)
            self._number += 1
            request = PlacementRequest(
                request_id=RequestId(f"r{self._number}"),
                num_prompt_tokens=self._case.num_prompt,
                block_hashes=list(chance.choice(self._prompts)),
                has_early_token=True,
            )
            reports = []
            while self._next_report <= self._now:
                reports.append(with_samples(chance.choice(self._reports), chance))
                self._next_report += REPORT_INTERVAL_S / len(self._reports)
            began = time.thread_time()
            for report in reports:
                state.handle(report, self._now)
                state.reply_to(report, self._now)
            answer = state.place(request, self._now)
            state.take_pauses()
            if isinstance(answer, Placement):
                self._open.append(request.request_id)
                state.handle(PrefillDone(request_id=request.request_id), self._now)
                state.handle(FirstToken(request_id=request.request_id), self._now)
            if answer is not None and len(self._open) > self._case.num_open:
                state.handle(RequestClosed(request_id=self._open.pop(0), num_output_tokens=100), self._now)
            took += time.thread_time() - began
        return took


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def measure(case: Case, folder: Path) -> None:
    plain = [RouterState(SLO) for _ in range(3)]
    log = StimulusLog(StimulusLogConfig(folder=str(folder), file_bytes=1 << 28), SLO, 1 << 24)
    loads = [Load(case, plain[0], plain[0]), Load(case, plain[1], plain[1])]
    loads.append(Load(case, plain[2], RecordedState(plain[2], log)))
    gc.collect()
    gc.freeze()
    slices: list[list[float]] = [[], [], []]
    writer_s = 0.0
    for number in range(SLICES):
        for which in (0, 1, 2) if number % 2 else (2, 1, 0):
            process, thread = time.process_time(), time.thread_time()
            slices[which].append(loads[which].slice())
            if which == 2:
                log.flush()
                await asyncio.sleep(0.2)  # the thread writes what it has
                writer_s += time.process_time() - process - (time.thread_time() - thread)
    began = time.thread_time()
    nodes = sum(len(part.nodes) for part in capture(plain[2], KEPT))
    snapshot_s = time.thread_time() - began
    log.close()
    gc.unfreeze()
    num_bytes = size_of(folder)
    number = SLICE * SLICES
    off, again, on = (statistics.median(each) / SLICE * 1e6 for each in slices)
    writer = writer_s / number * 1e6
    print(
        f"{case.name:24} {off:7.1f} us {again:7.1f} us {on:7.1f} us {writer:6.1f} us "
        f"{100 * ((on + writer) / min(off, again) - 1):+5.1f} %  {num_bytes / number:8,.0f}  "
        f"{1e3 * snapshot_s:.0f} ms ({nodes} nodes, {plain[2].index.num_blocks} blocks)"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("compiled code" if compiled.is_in_use() else "the sources, not compiled")
    print(f"{'':24} {'off':>10} {'off twice':>10} {'thread':>10} {'writer':>9} {'log':>7}  bytes/request  snapshot")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(case, Path(folder)))


if __name__ == "__main__":
    main()
