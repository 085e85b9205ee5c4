"""What autoscaling is worth: goodput and worker hours of Baton's autoscaler, queue-depth scaling and fixed pools,
on two recorded traces whose rate rises and falls as a wave.

Every run has the same requests, the same Scheduler and the same simulated engines. A worker serves 60 s after it was
ordered, and is paid for from its order to its end.
"""

import argparse
import sys
import time
from pathlib import Path

import msgspec

from bench.scaling.cases import CASES, Outcome, load, outcome, runs_of
from cluster.simulation.results.summary import aligned

HEAD = ("autoscaler", "attained", "tokens", "workers", "good per worker hour", "changes")


def row_of(found: Outcome) -> tuple[str, ...]:
    per_hour = 3600 * found.summary.goodput_per_s / found.mean_workers
    return (
        found.autoscaler,
        f"{found.summary.attainment:.1%}",
        f"{found.summary.token_attainment:.1%}",
        f"{found.mean_workers:.2f}",
        f"{per_hour:.0f}",
        f"{found.num_changes}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder of the traces")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first requests of each trace")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    arguments = parser.parse_args()
    figures: dict[str, list[Outcome]] = {}
    for case in CASES:
        rows = load(case, arguments.traces, arguments.requests)
        print(f"{case.name}: {len(rows)} requests in {rows[-1].arrival_s:.0f} s", flush=True)
        for name, autoscaler, first in runs_of(case):
            began_at = time.monotonic()
            found = outcome(case, rows, name, autoscaler, first)
            figures.setdefault(case.name, []).append(found)
            print(f"  {name}: {time.monotonic() - began_at:.0f} s", file=sys.stderr, flush=True)
        print(aligned([HEAD, *map(row_of, figures[case.name])]), flush=True)
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))


if __name__ == "__main__":
    main()
