"""Each decision on a slice of a trace, as it was when the policy was last tuned: making it faster changes none.

After a change of the policy: python -m tests.sim.test_golden_decisions
"""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import msgspec

from bench.data.shared_data import shared_file
from cluster.messages.ids import IngressId, SloClass
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.simulation.experiment import Cluster
from cluster.simulation.run import simulate
from cluster.simulation.traffic.traces import read_trace
from cluster.simulation.traffic.workload import at_rate
from cluster.slo import Objective, SloConfig
from router.pending_placements import PendingPlacements
from router.state import RouterState

DENSE_TRACE, MIXTURE_TRACE = "traces/mooncake_conversation_trace.jsonl.gz", "traces/AzureLLMInferenceTrace_conv.csv.gz"
GOLDEN = Path(__file__).parent / "golden_decisions.txt"
MID = Objective(ttft_s=1.0, ttft_per_prefill=3.0, tpot_s=0.05)
TIGHT = Objective(ttft_s=0.5, ttft_per_prefill=3.0, tpot_s=0.02)


class RecordingPlacements(PendingPlacements):
    def __init__(self, slos: SloConfig, noted: list[str]) -> None:
        super().__init__(RouterState(slos))
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
    """Of 200 requests to a dense model, and of 200 to a mixture of experts at a tight TPOT, on clusters that bear most
    of them; and of 200 of all classes to a dense model on a cluster that does not.
    """
    dense = Cluster(host_tokens=500_000)
    mixture = Cluster(model="qwen3-30b-a3b", tensor_parallel=1)
    return "".join(
        [
            *_decisions(dense, DENSE_TRACE, 3.0, MID),
            *_decisions(mixture, MIXTURE_TRACE, 20.0, TIGHT),
            *_decisions(dense, DENSE_TRACE, 30.0, MID, tuple(SloClass)),
        ]
    )


def _decisions(
    cluster: Cluster, trace: str, rate: float, objective: Objective, classes: Sequence[SloClass] = (SloClass.STANDARD,)
) -> list[str]:
    """`classes`: those of the requests, in turn."""
    slos, noted = SloConfig(interactive=objective, standard=objective, batch=objective), list[str]()
    rows, isolated_s = read_trace(shared_file(trace), 1000, 1200), cluster.isolated_prefill_s
    rows = [msgspec.structs.replace(row, slo_class=slo_class) for row, slo_class in zip(rows, cycle(classes))]
    workload = at_rate(rows, rate, lambda row: objective.resolve(isolated_s(row.num_prompt)))
    simulate(workload, cluster.split(4), lambda: RecordingPlacements(slos, noted))
    return noted


def test_decisions_are_those_of_the_tuned_policy() -> None:
    assert decisions().splitlines() == GOLDEN.read_text().splitlines()


if __name__ == "__main__":
    GOLDEN.write_text(decisions())
