"""Each decision on a slice of a trace, as it was when the policy was last tuned: making it faster changes none.

After a change of the policy: python -m tests.sim.test_golden_decisions
"""

from pathlib import Path

from bench.data.shared_data import shared_file
from cluster.messages.ids import IngressId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.simulation.experiment import Cluster
from cluster.simulation.run import simulate
from cluster.simulation.traffic.traces import read_trace
from cluster.simulation.traffic.workload import at_rate
from cluster.slo import Objective, SloConfig
from router.pending_placements import PendingPlacements
from router.state import RouterState

TRACE = "traces/mooncake_conversation_trace.jsonl.gz"
GOLDEN = Path(__file__).parent / "golden_decisions.txt"
MID = Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05)
SLOS = SloConfig(interactive=MID, standard=MID, batch=MID)


class RecordingPlacements(PendingPlacements):
    def __init__(self, noted: list[str]) -> None:
        super().__init__(RouterState(SLOS))
        self._noted = noted

    async def place(self, request: PlacementRequest, ingress: IngressId | None = None) -> Placement | Rejection:
        answer = await super().place(request, ingress)
        if isinstance(answer, Placement):
            what = f"{answer.path} {answer.prefill or ''} {answer.decode or ''}"
        else:
            what = f"refused for {answer.retry_after_s:g} s"
        self._noted.append(f"{request.request_id}: {what}\n")
        return answer


def decisions() -> str:
    """Of 200 requests, on a cluster that bears nearly all of them."""
    cluster, noted = Cluster(host_tokens=500_000), list[str]()
    rows, isolated_s = read_trace(shared_file(TRACE), 1000, 1200), cluster.isolated_prefill_s
    workload = at_rate(rows, 3.0, lambda row: MID.resolve(isolated_s(row.num_prompt)))
    simulate(workload, cluster.split(4), lambda: RecordingPlacements(noted))
    return "".join(noted)


def test_decisions_are_those_of_the_tuned_policy() -> None:
    assert decisions().splitlines() == GOLDEN.read_text().splitlines()


if __name__ == "__main__":
    GOLDEN.write_text(decisions())
