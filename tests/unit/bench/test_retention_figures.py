"""What the bench of retention says of its runs."""

import pytest

from bench.retention.figures import figures_of, mean_with_interval
from cluster.messages.ids import Outcome, Path
from cluster.messages.placement import Slo
from cluster.messages.retention import RetentionCounts
from cluster.simulation.traffic.agent_tasks import TENANT
from cluster.simulation.traffic.workload import RequestRecord, SimRequest


def a_step(number: int, worker: str) -> tuple[SimRequest, RequestRecord]:
    sim = SimRequest(
        arrival_s=number,
        num_prompt=100,
        num_output=10,
        tenant=TENANT,
        slo=Slo(1.0, 1.0),
        follows=number - 1 if number else None,
    )
    record = RequestRecord(
        arrival_s=number,
        num_prompt=100,
        num_output=10,
        tenant=TENANT,
        slo=Slo(1.0, 1.0),
        path=Path.DECODE,
        worker=worker,
        ttft_s=0.5,
        outcome=Outcome.FINISHED,
        num_hit_tokens=40,
    )
    return sim, record


def test_next_steps_that_stay_with_their_worker_are_told() -> None:
    workload, records = zip(*(a_step(i, worker) for i, worker in enumerate(["a", "a", "b", "b", "b"])), strict=True)
    figures = figures_of(workload, records, [3.0, 1.0, 2.0], [RetentionCounts(returned=2), RetentionCounts(returned=3)])
    assert figures.same_worker == 75.0
    assert (figures.agents.hits, figures.agents.good, figures.chats.number) == (40.0, 100.0, 0)
    assert (figures.idle_p5, figures.idle_p50, figures.counts.returned) == (1.0, 2.0, 5)


@pytest.mark.parametrize(
    ("differences", "text"), [([1.0], "+1.00"), ([1.0, 1.0, 1.0], "+1.00 ± 0.00"), ([0.0, 2.0], "+1.00 ± 12.71")]
)
def test_differences_have_their_interval(differences: list[float], text: str) -> None:
    assert mean_with_interval(differences) == text
