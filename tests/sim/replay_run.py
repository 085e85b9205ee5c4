"""A simulated run in which much goes wrong, for tests of replays: workers die and come back, requests are lost with
several engines, links are proved while requests come, a rush of a higher class has others pause.
"""

import random

import msgspec

from cluster.messages.ids import Pool, SloClass
from cluster.simulation.experiment import Cluster
from cluster.simulation.pools.pool_setting import ClusterSetting, Fault, Linking
from cluster.simulation.run import simulate
from cluster.simulation.traffic.workload import Arrival, RequestRecord, SimRequest, at_rate
from cluster.slo import Objective, SloConfig
from router.pending_placements import PendingPlacements
from router.recording.recorded_state import RecordedState, StimulusSink
from router.state import RouterState

MID = Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05)
SLOS = SloConfig(interactive=MID, standard=MID, batch=Objective(ttft_s=30.0, ttft_per_prefill=10.0, tpot_s=0.2))
FAULTS = (
    Fault(pool=Pool.DECODE, index=0, at_s=2.0, back_after_s=2.0),
    Fault(pool=Pool.PREFILL, index=0, at_s=3.0, back_after_s=1.0),
    Fault(pool=Pool.DECODE, index=1, at_s=6.0),
    Fault(pool=Pool.PREFILL, index=0, at_s=6.5),
)
FEW = Cluster(num_workers=4, faults=FAULTS, host_tokens=200_000)


def a_workload(num_requests: int) -> list[SimRequest]:
    """A batch job that fills the workers, and chats in bursts."""
    chance, rows = random.Random(4), list[Arrival]()
    system = [chance.randbytes(8) for _ in range(8)]
    for number in range(num_requests):
        is_batch = number % 3 == 0
        num_prompt = int(chance.uniform(4000, 30_000)) if is_batch else int(chance.uniform(500, 6000))
        blocks = [*system, *[chance.randbytes(8) for _ in range(60)]][: num_prompt // 512]
        at_s = chance.uniform(0.0, 1.0) if is_batch else chance.choice((1.0, 3.0, 5.0, 7.0)) + chance.random()
        slo_class = SloClass.BATCH if is_batch else chance.choice((SloClass.INTERACTIVE, SloClass.STANDARD))
        rows.append(
            Arrival(
                arrival_s=at_s,
                num_prompt=num_prompt,
                num_output=int(chance.uniform(20, 600)),
                block_hashes=blocks,
                tenant=f"tenant-{number % 2}",
                slo_class=slo_class,
            )
        )
    rows.sort(key=lambda row: row.arrival_s)
    isolated_s = FEW.isolated_prefill_s
    return at_rate(rows, 1.0, lambda row: SLOS.of(row.slo_class).resolve(isolated_s(row.num_prompt)))


def a_setting() -> ClusterSetting:
    return msgspec.structs.replace(FEW.split(2), linking=Linking(proof_s=0.3))


def run(log: StimulusSink, num_requests: int = 160) -> list[RequestRecord]:
    def scheduler() -> PendingPlacements:
        return PendingPlacements(RecordedState(RouterState(SLOS), log))

    return simulate(a_workload(num_requests), a_setting(), scheduler)
