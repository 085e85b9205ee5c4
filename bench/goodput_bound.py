"""How far the policies of the evaluation matrix are from what any policy could attain.

For each cell the script searches the highest rate at which a linear program that knows all arrivals, lengths and
prefixes attains the target (bench/matrix/oracle.py). On workers whose steps take what the step model says, no policy
attains the target at a higher rate. The bound is loose: it takes every prefix for cached everywhere, and every transfer
for instant.
"""

import argparse
import sys
import time

from bench.matrix.cells import CELLS, TRAFFIC, cluster_of, experiment, matching
from bench.matrix.oracle import Bound, bound
from cluster.simulation.rate_search import max_rate
from cluster.simulation.results.summary import aligned

REQUESTS = 1500
"""Requests of a cell. More bounds tighter, because work after the last arrival is free, and takes longer: a program for
2,500 requests takes some minutes.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", metavar="CELL", help=f"traffic/slo, with wildcards: {CELLS[0]}, ...")
    parser.add_argument("--requests", type=int, default=REQUESTS, metavar="N", help="per cell (%(default)s)")
    parser.add_argument("--rate", type=float, metavar="R", help="bound the attainment at this rate, without a search")
    parser.add_argument("--target", type=float, default=0.9, help="attainment at the highest rate (%(default)s)")
    arguments = parser.parse_args()
    try:
        cells = matching(arguments.cells)
    except ValueError as error:
        sys.exit(f"bench: {error}")
    rows = [("cell", "req/s", "requests in SLO, at most", "tokens in SLO, at most")]
    for cell in cells:
        rate = arguments.rate or _highest_rate(cell, arguments.requests, arguments.target)
        found = _bound_at(cell, arguments.requests, rate)
        rows.append((cell, f"{rate:.3g}", f"{100 * found.attainment:.1f} %", f"{100 * found.token_attainment:.1f} %"))
    print(aligned(rows))


def _highest_rate(cell: str, num_requests: int, target: float) -> float:
    guess_per_s = 5 * TRAFFIC[cell.partition("/")[0]].guess_per_s
    return max_rate(lambda rate: _bound_at(cell, num_requests, rate).attainment, target, guess_per_s).rate


def _bound_at(cell: str, num_requests: int, rate: float) -> Bound:
    began_at = time.monotonic()
    cluster = cluster_of(cell, step_tokens=1)  # the bound has steps of any size
    workload = experiment(cell, 0, num_requests, cluster).workload(rate)
    found = bound(workload, cluster.step_model, cluster.num_workers, cluster.kv_capacity_tokens)
    took_s = time.monotonic() - began_at
    print(
        f"{cell} at {rate:.3g} req/s: {100 * found.attainment:.1f} % at most ({took_s:.0f} s)",
        file=sys.stderr,
        flush=True,
    )
    return found


if __name__ == "__main__":
    main()
