"""What each part of Baton is worth: the highest rate of a simulated cluster with everything, and without one part.

Each row leaves out one part and keeps all others. So the rows do not add up: where admission keeps queues short, for
example, the choice of workers matters less. The cells are those of bench/goodput.py.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import msgspec

from bench.goals.goodput_parts import missed
from bench.goals.verdict import conclude
from bench.matrix.cells import CELLS, REPO_ROOT, TRAFFIC, cluster_of, matching
from bench.matrix.report import markdown, spread
from bench.matrix.search import OUR_SPLIT
from bench.matrix.trials import TrialFile, TrialKey, code_digest
from cluster.simulation.baselines import BASELINES
from cluster.simulation.experiment import Cluster
from cluster.simulation.rate_search import max_rate
from cluster.simulation.results.summary import aligned

STEP_TOKENS = (256, 192, 320, 384, 512, 640, 768)
"""Most tokens of a step for policies without Baton's steps. The best is taken. Fewer sizes make Baton's steps look
better than they are.
"""
SEEDS = 3
"""Runs with other arrivals whose rates are averaged. More take longer; one alone shows no difference below 6 %."""
TARGET = 0.9
RESULTS = REPO_ROOT / "bench" / "results"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A setting, with everything or without one part."""

    name: str
    policy: str = "goodput"
    num_prefill: int = OUR_SPLIT
    has_kv_events: bool = True
    has_tier: bool = True
    is_resumable: bool = True

    @property
    def has_step_size(self) -> bool:
        """Whether the most tokens of a step are a setting. Baton's engines choose them."""
        return BASELINES[self.policy].has_step_size


PARTS = (
    Part(name="everything"),
    Part(name="no admission: every request is placed at once", policy="goodput_no_admission"),
    Part(
        name="no choice by cost: LMetric where admission takes the request",
        policy="lmetric_filter_steps",
        num_prefill=0,
    ),
    Part(name="no choice by cost: the least TTFT, likewise", policy="min_ttft_filter_steps", num_prefill=0),
    Part(name="no steps by objective: the best fixed steps, one pool", policy="goodput_no_bound", num_prefill=0),
    Part(name="nor the order by deadline: engines like vLLM's, one pool", policy="goodput_no_steps", num_prefill=0),
    Part(name="nor the choice by cost: the least TTFT", policy="min_ttft_filter", num_prefill=0),
    Part(name="no handoffs: all workers in one pool", num_prefill=0),
    Part(name="no KV events: prefixes as placed", has_kv_events=False),
    Part(name="no DRAM tier", has_tier=False),
    Part(name="no early first token", is_resumable=False),
)

Rates = dict[tuple[Part, str], list[float]]
"""The highest rates, in requests per second, by what is left out and by cell. One for each seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", metavar="CELL", help=f"traffic/slo, with wildcards: {CELLS[0]}, ...")
    parser.add_argument("--requests", type=int, default=2300, metavar="N", help="per run (%(default)s)")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="(%(default)s)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at a time (%(default)s)")
    arguments = parser.parse_args()
    try:
        cells = matching(arguments.cells)
    except ValueError as error:
        sys.exit(f"bench: {error}")
    rates = _highest_rates(cells, arguments.requests, arguments.seeds, arguments.processes)
    rows = _rows(cells, rates)
    print(aligned(rows))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "goodput-parts.md").write_text(markdown(rows))
    conclude(missed({(part.name, cell): fmean(found) for (part, cell), found in rates.items()}, PARTS[0].name))


def _highest_rates(cells: Sequence[str], num_requests: int, num_seeds: int, num_processes: int) -> Rates:
    code, file = code_digest(), RESULTS / "goodput-trials.jsonl"
    places = [(part, cell) for part in PARTS for cell in cells]
    jobs = [(part, cell, seed) for part, cell in places for seed in range(num_seeds)]
    with ProcessPoolExecutor(num_processes, get_context("spawn")) as executor:
        find = partial(highest_rate, num_requests=num_requests, file=file, code=code)
        found = list(executor.map(find, *zip(*jobs, strict=True)))
    by_place = [found[first : first + num_seeds] for first in range(0, len(found), num_seeds)]
    return dict(zip(places, by_place, strict=True))


def _rows(cells: Sequence[str], rates: Rates) -> list[tuple[str, ...]]:
    """The rate with everything, and what each other rate is of it: the mean of the ratios for the same arrivals."""
    rows: list[tuple[str, ...]] = [("highest rate at 90 % attainment", *cells)]
    for part in PARTS:
        texts = []
        for cell in cells:
            whole = rates[PARTS[0], cell]
            ratios = [rate / all_parts for rate, all_parts in zip(rates[part, cell], whole, strict=True) if all_parts]
            texts.append(f"{fmean(whole):.3g}/s{spread(whole)}" if part is PARTS[0] else _shown(ratios))
        rows.append((part.name, *texts))
    return rows


def _shown(ratios: Sequence[float]) -> str:
    return f"{fmean(ratios):.2f}{spread(ratios)}" if ratios else "-"


def highest_rate(part: Part, cell: str, seed: int, num_requests: int, file: Path, code: str) -> float:
    """In requests per second, with the best step size where the part has one."""
    trials = TrialFile(file, code)

    def attainment(step_tokens: int, rate: float) -> float | None:
        key = TrialKey(
            cell=cell,
            policy=part.policy,
            num_prefill=part.num_prefill,
            rate=rate,
            seed=seed,
            num_requests=num_requests,
            target=TARGET,
            cluster=changed(cluster_of(cell, step_tokens), part),
        )
        trial = trials.get(key)
        print(f"{cell}, {part.name}: {rate:.3g}/s ({trial.took_s:.0f} s)", file=sys.stderr, flush=True)
        return trial.summary.attainment if trial.summary else None

    guess_per_s = 3 * TRAFFIC[cell.partition("/")[0]].guess_per_s
    sizes = STEP_TOKENS if part.has_step_size else STEP_TOKENS[:1]
    return max(max_rate(partial(attainment, size), TARGET, guess_per_s).rate for size in sizes)


def changed(cluster: Cluster, part: Part) -> Cluster:
    """The cluster without the part."""
    reporting = cluster.reporting
    if not part.has_kv_events:
        reporting = msgspec.structs.replace(reporting, kv_events_s=None)
    host_tokens = cluster.host_tokens if part.has_tier else 0
    return msgspec.structs.replace(
        cluster, reporting=reporting, host_tokens=host_tokens, is_resumable=part.is_resumable
    )


if __name__ == "__main__":
    main()
