"""What pauses are worth: a batch job fills a simulated cluster, and then an interactive chat begins.

Each seed runs the same requests with pauses and without. The streams are those of the mix `background`. They begin one
after the other, because requests that come together from the start are kept apart by admission alone.
"""

import argparse
from collections.abc import Sequence

import msgspec

from cluster.messages.ids import SloClass
from cluster.simulation.experiment import Cluster
from cluster.simulation.results.summary import aligned
from cluster.simulation.run import simulate
from cluster.simulation.traffic.mixes import Mix, generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import slo_of
from cluster.simulation.traffic.workload import RequestRecord, SimRequest, at_rate
from cluster.slo import SloConfig
from router.pending_placements import PendingPlacements
from router.state import RouterState

SLOS = SloConfig()
CLUSTER = Cluster(num_workers=4)
NUM_PREFILL = 1
CHAT_PER_S, JOB_PER_S = 15.0, 10.0
"""Requests per second. More of the job fill the workers sooner; more of the chat need more of the workers."""


def rush(num_chat: int, num_job: int, begins_s: float, seed: int) -> list[SimRequest]:
    """A batch job from time 0 on, and a chat that begins at `begins_s`."""
    chat, job = (
        generate(Mix(what="", rate_per_s=per_s, streams=(stream,)), number, seed + more)
        for stream, per_s, number, more in zip(
            MIXES["background"].streams, (CHAT_PER_S, JOB_PER_S), (num_chat, num_job), (0, 1), strict=True
        )
    )
    late = [msgspec.structs.replace(row, arrival_s=row.arrival_s + begins_s) for row in chat]
    arrivals = sorted([*late, *job], key=lambda row: row.arrival_s)
    return at_rate(arrivals, 1.0, slo_of(SLOS, CLUSTER.isolated_prefill_s))


def served(workload: Sequence[SimRequest], *, preempts: bool) -> list[RequestRecord]:
    def make_scheduler() -> PendingPlacements:
        return PendingPlacements(RouterState(SLOS, preempts=preempts))

    return simulate(workload, CLUSTER.split(NUM_PREFILL), make_scheduler)


def num_good(records: Sequence[RequestRecord], slo_class: SloClass) -> int:
    return sum(record.is_good for record in records if record.slo_class is slo_class)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat", type=int, default=300, metavar="N", help="requests of the chat (%(default)s)")
    parser.add_argument("--job", type=int, default=240, metavar="N", help="requests of the job (%(default)s)")
    parser.add_argument("--begins", type=float, default=15.0, metavar="S", help="second of the chat (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="(%(default)s)")
    arguments = parser.parse_args()
    rows = [("seed", "pauses", "chat within SLO", "job within SLO", "all within SLO", "number of pauses")]
    for seed in range(arguments.seeds):
        workload = rush(arguments.chat, arguments.job, arguments.begins, seed)
        for preempts in (False, True):
            records = served(workload, preempts=preempts)
            chat, job = num_good(records, SloClass.INTERACTIVE), num_good(records, SloClass.BATCH)
            num_pauses = sum(record.num_pauses for record in records)
            with_pauses = "yes" if preempts else "no"
            rows.append((str(seed), with_pauses, f"{chat}", f"{job}", f"{chat + job}", f"{num_pauses}"))
    print(aligned(rows))


if __name__ == "__main__":
    main()
