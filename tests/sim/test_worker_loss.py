"""What the loss of a worker costs requests that ran on others, and those that arrive soon after.

Eight workers, Qwen3-32B on pairs of H100, at some 60 % of what they bear. One of them dies with about 150 streams.
"""

import random

import pytest

from cluster.messages.ids import Outcome, Pool
from cluster.simulation.experiment import Cluster
from cluster.simulation.pools.pool_setting import Fault
from cluster.simulation.run import simulate
from cluster.simulation.traffic.workload import Arrival, RequestRecord, SimRequest, at_rate
from cluster.slo import Objective, SloConfig
from router.pending_placements import PendingPlacements
from router.state import RouterState

SLOS = SloConfig(standard=Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05))
PER_S = 90.0
DIES_AT_S = 15.0
ENDS_AT_S = 18.0
EIGHT = Cluster(num_workers=8, faults=(Fault(pool=Pool.DECODE, index=0, at_s=DIES_AT_S),))


def a_workload() -> list[SimRequest]:
    """Short prompts and long answers, so that a worker has many streams."""
    chance, at_s, arrivals = random.Random(1), 0.0, list[Arrival]()
    while at_s < ENDS_AT_S:
        at_s += chance.expovariate(PER_S)
        num_prompt, num_output = max(16, int(chance.gauss(500, 125))), max(2, int(chance.gauss(600, 120)))
        arrivals.append(Arrival(arrival_s=at_s, num_prompt=num_prompt, num_output=num_output))
    isolated_s = EIGHT.isolated_prefill_s
    return at_rate(arrivals, 1.0, lambda row: SLOS.standard.resolve(isolated_s(row.num_prompt)))


def attainment(records: list[RequestRecord]) -> float:
    return sum(record.is_good for record in records) / len(records)


@pytest.mark.timeout(280)
def test_streams_of_a_dead_worker_go_on_and_others_hardly_notice() -> None:
    records = simulate(a_workload(), EIGHT.split(4), lambda: PendingPlacements(RouterState(SLOS)))
    again = [record for record in records if record.num_attempts > 1]
    assert len(again) > 100
    assert all(record.outcome is Outcome.FINISHED for record in again)
    assert attainment(again) >= 0.9
    others = [record for record in records if record.num_attempts == 1 and record.arrival_s < DIES_AT_S]
    assert attainment(others) >= 0.99
    newcomers = [record for record in records if DIES_AT_S <= record.arrival_s < DIES_AT_S + 2.0]
    assert attainment(newcomers) >= 0.95
