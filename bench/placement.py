"""How fast RouterState places, and what its index of KV blocks weighs: no cluster, a model of the cell's biggest.

    make bench-placement

Half of the workers prefill, half decode. Prompts come in conversations that share their system prompt. Each prompt is
computed as long as the placement predicts, requests decode for a while, every worker reports four times a second with
samples of its steps, and every request passes through all of its events. The goals: 10,000 placements a second on a
core with 64 workers and prompts of 512 tokens, and a p99 of 1 ms with 100 workers and prompts of 32k. It measures what
would run here: compiled code (`baton compile`), or the sources (BATON_PURE_PYTHON=1), which miss the goals. All times
are of the CPU, so that neighbours count less. The garbage collector is frozen after the start.
"""

import argparse
import gc
import random
from heapq import heapify, heappop, heappush, heapreplace
from pathlib import Path
from time import thread_time
from typing import NamedTuple

import msgspec

from bench.goals.placement import missed
from bench.goals.verdict import conclude
from cluster import compiled
from cluster.messages.ids import Address, Pool, RequestId, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from cluster.messages.placement import Placement, PlacementRequest
from cluster.messages.reports import REPORT_INTERVAL_S, EngineShape, StepSample, WorkerLoad, WorkerReport
from cluster.messages.scheduler_events import FirstToken, PrefillDone, RequestClosed
from cluster.messages.transport import LinkSpeed
from cluster.slo import Objective, SloConfig
from router.state import RouterState

BLOCK = 16
LINK = LinkSpeed(5e-4, 5e10)
SLO = SloConfig(standard=Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05))
INDEXED_BLOCKS = 1_000_000


class Case(NamedTuple):
    name: str
    num_workers: int
    num_prompt: int
    rate_per_s: float
    num_requests: int
    num_open: int
    """Requests that decode at a time."""


CASES = (
    Case("64 workers, 512 tokens", 64, 512, 2000.0, 6000, 1500),
    Case("100 workers, 32k tokens", 100, 32_000, 30.0, 1500, 300),
)


class Figures(NamedTuple):
    place_s: list[float]
    events_s: float
    """CPU time of all events and reports of sessions and workers."""
    num_refused: int


def a_report(worker: str, links: list[str]) -> WorkerReport:
    pool = Pool.PREFILL if worker.startswith("p") else Pool.DECODE
    return WorkerReport(
        worker=WorkerId(worker),
        pool=pool,
        address=Address("host", 1, "70726f63657373"),
        load=WorkerLoad(),
        max_requests=512,
        shape=EngineShape(
            kind="qwen3-32b|h100|tp2",
            kv_capacity_tokens=316_963,
            block_size=BLOCK,
            max_step_tokens=8192 if pool is Pool.PREFILL else 512,
            has_short_steps=True,
            by_deadline=True,
            overtakes=True,
            kv_bytes_per_token=262_144,
        ),
        links={WorkerId(prefill): LINK for prefill in links},
    )


def with_samples(report: WorkerReport, chance: random.Random) -> WorkerReport:
    """The report with as many samples as an engine sends: of a step with a prompt and of steps without."""
    samples = [StepSample(256, 256 * 128, 20, 20_000, 0.026 * chance.uniform(0.95, 1.05))]
    samples += [StepSample(0, 0, 20, 20_000, 0.017 * chance.uniform(0.95, 1.05)) for _ in range(3)]
    return msgspec.structs.replace(report, steps=samples)


def reports_of(num_workers: int) -> list[WorkerReport]:
    prefills = [f"p{number}" for number in range(num_workers // 2)]
    decodes = [f"d{number}" for number in range(num_workers - len(prefills))]
    return [a_report(worker, []) for worker in prefills] + [a_report(worker, prefills) for worker in decodes]


def prompts_of(case: Case, chance: random.Random) -> list[list[bytes]]:
    """Prompts of 200 conversations. A quarter of each is the system prompt that all share."""
    num_blocks = case.num_prompt // BLOCK
    system = [chance.randbytes(8) for _ in range(num_blocks // 4)]
    return [system + [chance.randbytes(8) for _ in range(num_blocks - len(system))] for _ in range(200)]


def measure(case: Case) -> Figures:
    chance = random.Random(0)
    state, reports = RouterState(SLO), reports_of(case.num_workers)
    for report in reports:
        state.handle(report, 0.0)
    prompts = prompts_of(case, chance)
    fill_index(state, reports, prompts, chance)
    gc.collect()
    gc.freeze()
    now, num_refused, took, events_s = 0.1, 0, list[float](), 0.0
    opened: list[RequestId] = []
    computing: list[tuple[float, RequestId]] = []
    """Heap of the prompts that are computed, by when they are done."""
    reporting = [(chance.uniform(0.1, 0.1 + REPORT_INTERVAL_S), number) for number in range(len(reports))]
    heapify(reporting)
    for number in range(case.num_requests):
        now += chance.expovariate(case.rate_per_s)
        events_began = thread_time()
        while computing and computing[0][0] <= now:
            done_at, request_id = heappop(computing)
            state.handle(PrefillDone(request_id=request_id), done_at)
            state.handle(FirstToken(request_id=request_id), done_at)
            opened.append(request_id)
        while len(opened) > case.num_open:
            state.handle(RequestClosed(request_id=opened.pop(0), num_output_tokens=chance.randint(20, 500)), now)
        while reporting[0][0] <= now:
            at, of = reporting[0]
            state.handle(with_samples(reports[of], chance), at)
            heapreplace(reporting, (at + REPORT_INTERVAL_S, of))
        events_s += thread_time() - events_began
        request = PlacementRequest(
            request_id=RequestId(f"r{number}"),
            num_prompt_tokens=case.num_prompt,
            block_hashes=list(chance.choice(prompts)),
            has_early_token=True,
        )
        began = thread_time()
        answer = state.place(request, now)
        placed = thread_time()
        if isinstance(answer, Placement) and answer.predicted is not None:
            heappush(computing, (now + answer.predicted.ttft_s, request.request_id))
        else:
            num_refused += 1
            state.handle(RequestClosed(request_id=request.request_id), now)
        took.append(placed - began)
        events_s += thread_time() - placed
    gc.unfreeze()
    return Figures(took, events_s, num_refused)


def fill_index(
    state: RouterState, reports: list[WorkerReport], prompts: list[list[bytes]], chance: random.Random
) -> None:
    """Every conversation is on two workers. What a snapshot says is exact."""
    held: dict[WorkerId, list[bytes]] = {report.worker: [] for report in reports}
    for prompt in prompts:
        for report in chance.sample(reports, 2):
            held[report.worker] += prompt
    for worker, blocks in held.items():
        state.handle_kv_events(KvEvents(worker, 1, True, True, [KvChange(KvTier.GPU, True, blocks)]), 0.0)


def bytes_per_block() -> float:
    """Resident memory that a million blocks take, which five workers have each a fifth of."""
    state, reports = RouterState(SLO), reports_of(10)
    for report in reports:
        state.handle(report, 0.0)
    gc.collect()
    before = resident_bytes()
    chance = random.Random(1)
    for report in reports[:5]:
        for number in range(1, 101):
            blocks = [chance.randbytes(8) for _ in range(INDEXED_BLOCKS // 500)]
            state.handle_kv_events(
                KvEvents(report.worker, number, number == 1, True, [KvChange(KvTier.GPU, True, blocks)]), 0.0
            )
    assert state.index.num_blocks == INDEXED_BLOCKS
    return (resident_bytes() - before) / INDEXED_BLOCKS


def resident_bytes() -> int:
    """Now, not the most so far."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("compiled code" if compiled.is_in_use() else "the sources, not compiled")
    print(f"one indexed block takes {bytes_per_block():.0f} bytes")
    print(f"{'':24}  placements/s       p50       p99       max   events  refused")
    rates, p99s_ms = [], []
    for case in CASES:
        place_s, events_s, num_refused = measure(case)
        number, in_order = len(place_s), sorted(place_s)
        p50, p99, most = (in_order[min(number - 1, int(number * share))] * 1e6 for share in (0.5, 0.99, 1.0))
        print(
            f"{case.name:24}  {number / sum(place_s):12,.0f} {p50:6.0f} us {p99:6.0f} us {most:6.0f} us "
            f"{events_s / number * 1e6:5.0f} us  {num_refused / number:6.1%}"
        )
        rates.append(number / sum(place_s))
        p99s_ms.append(p99 / 1e3)
    conclude(missed(rates[0], p99s_ms[1]))


if __name__ == "__main__":
    main()
