"""What cells cost: the same requests on one Scheduler with all workers, and on 4 and 16 Schedulers with their share.

    make bench-cells

Everything is simulated (docs/simulator.md): production's Schedulers, sessions and choice of a cell, on one virtual
clock. One cell has all workers, so it is the best that cells could come to. Several ingresses share nothing: each of
them sees a part of the requests. The figures do not depend on the machine. docs/cells.md says how to read them.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean

import msgspec

from bench.cells.traffic import TRAFFIC
from cluster import compiled
from cluster.simulation.cells.run_cells import simulate_cells
from cluster.simulation.experiment import Cluster, Experiment
from cluster.simulation.results.summary import WARM_UP, aligned, summary
from cluster.simulation.traffic.slos import parse_slos
from cluster.simulation.traffic.workload import rate_per_s
from router.pending_placements import PendingPlacements
from router.state import RouterState

SLO = "mid"
HOST_TOKENS = 1_000_000
HEADING = (
    "traffic",
    "cells",
    "ingresses",
    "req/s",
    "good/s",
    "of one",
    "attained",
    "tokens",
    "hits",
    "busiest",
    "moved",
)


class CellsTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    traffic: str
    num_cells: int
    num_fronts: int
    num_workers: int
    num_requests: int
    rate: float
    """Factor on the traffic's own rate."""


class CellsFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run. Shares are in [0, 1]."""

    trial: CellsTrial
    offered_per_s: float
    goodput_per_s: float
    attainment: float
    token_attainment: float
    hit_rate: float
    busiest: float
    """KV memory that the requests of the busiest cell hold, as a multiple of the mean of all cells. A mean over time,
    in which each moment counts by the memory that is held.
    """
    moved: float
    """Share of the placements that were in another cell than the one that was asked first."""
    took_s: float


def main() -> None:
    arguments = _arguments()
    trials = list(_trials(arguments))
    if not compiled.is_in_use():
        print("bench: placement runs from its sources, at a third of the speed: see `make compile`", file=sys.stderr)
    figures = dict[CellsTrial, CellsFigures]()
    try:
        with ProcessPoolExecutor(arguments.jobs) as processes:
            for done in as_completed([processes.submit(run, trial) for trial in trials]):
                figures[done.result().trial] = done.result()
                print(f"[{len(figures)}/{len(trials)}] {_line(done.result())}", file=sys.stderr, flush=True)
    except FileNotFoundError as error:
        sys.exit(f"bench: {error}")
    in_order = [figures[trial] for trial in trials]
    print(table(in_order))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(in_order), indent=1))


def run(trial: CellsTrial) -> CellsFigures:
    began = time.monotonic()
    rows = TRAFFIC[trial.traffic].rows(trial.num_requests)
    slos = parse_slos(SLO)
    cluster = Cluster(num_workers=trial.num_workers // trial.num_cells, host_tokens=HOST_TOKENS)
    workload = Experiment(rows, cluster, slos).workload(trial.rate * rate_per_s(rows))
    ran = simulate_cells(
        workload,
        cluster.split(cluster.num_workers // 2),
        trial.num_cells,
        lambda: PendingPlacements(RouterState(slos)),
        trial.num_fronts,
    )
    figures = summary(ran.records)
    loads = ran.loads[round(WARM_UP * len(ran.loads)) :]
    return CellsFigures(
        trial=trial,
        offered_per_s=figures.offered_per_s,
        goodput_per_s=figures.goodput_per_s,
        attainment=figures.attainment,
        token_attainment=figures.token_attainment,
        hit_rate=figures.hit_rate,
        busiest=sum(map(max, loads)) / (sum(map(fmean, loads)) or 1.0),
        moved=ran.moved,
        took_s=time.monotonic() - began,
    )


def table(figures: Sequence[CellsFigures]) -> str:
    """One line per run. `of one` compares the goodput with that of one cell for the same traffic."""
    one = {each.trial.traffic: each.goodput_per_s for each in figures if each.trial.num_cells == 1}
    return aligned([HEADING, *(_cells(each, one.get(each.trial.traffic)) for each in figures)])


def _cells(figures: CellsFigures, one: float | None) -> list[str]:
    trial = figures.trial
    return [
        trial.traffic,
        f"{trial.num_cells}",
        f"{trial.num_fronts}",
        f"{figures.offered_per_s:.2f}",
        f"{figures.goodput_per_s:.2f}",
        f"{figures.goodput_per_s / one:.3f}" if one else "-",
        f"{figures.attainment:.1%}",
        f"{figures.token_attainment:.1%}",
        f"{figures.hit_rate:.1%}",
        f"{figures.busiest:.2f}",
        f"{figures.moved:.1%}",
    ]


def _line(figures: CellsFigures) -> str:
    trial = figures.trial
    return (
        f"{trial.traffic}: {trial.num_cells} cells, {trial.num_fronts} ingresses: "
        f"{figures.attainment:.1%} within SLO, {figures.hit_rate:.1%} hits ({figures.took_s:.0f} s)"
    )


def _trials(arguments: argparse.Namespace) -> Iterator[CellsTrial]:
    for traffic in arguments.traffic:
        for num_cells in arguments.cells:
            for num_fronts in arguments.ingresses if num_cells > 1 else (1,):
                yield CellsTrial(
                    traffic=traffic,
                    num_cells=num_cells,
                    num_fronts=num_fronts,
                    num_workers=arguments.workers,
                    num_requests=arguments.requests,
                    rate=arguments.rate,
                )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = "; ".join(f"{name}: {each.what}" for name, each in TRAFFIC.items())
    parser.add_argument("--traffic", nargs="+", choices=TRAFFIC, default=list(TRAFFIC), metavar="NAME", help=names)
    parser.add_argument("--workers", type=int, default=32, metavar="N", help="of all cells together (%(default)s)")
    parser.add_argument("--cells", type=int, nargs="+", default=[1, 4, 16], metavar="N", help="(1 4 16)")
    parser.add_argument("--ingresses", type=int, nargs="+", default=[1, 4], metavar="N", help="(1 4)")
    parser.add_argument("--requests", type=int, default=6_000, metavar="N", help="per run (%(default)s)")
    parser.add_argument("--rate", type=float, default=1.0, metavar="X", help="factor on the rate (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at the same time (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, as to bench/results/cells.json")
    arguments = parser.parse_args()
    for name in ("workers", "requests", "jobs"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} is {getattr(arguments, name)}: give 1 or more")
    if not 0.0 < arguments.rate < float("inf"):
        parser.error(f"--rate is {arguments.rate}: give a positive factor")
    if min(arguments.ingresses) < 1:
        parser.error("--ingresses: give 1 or more")
    for number in arguments.cells:
        if number < 1 or arguments.workers % number or arguments.workers // number < 2:
            parser.error(
                f"--cells {number}: {arguments.workers} workers cannot be divided into {number} cells of the same size "
                "with two workers or more"
            )
    return arguments


if __name__ == "__main__":
    main()
