from cluster.messages.ids import Path, WorkerId
from cluster.messages.placement import Placement, Slo
from router.load.charge import Charge, Work
from router.prediction.output_lengths import LengthHistogram
from tests.unit.factories import a_placement_request

PLACEMENT = Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="", slo=Slo(1.0, 0.05))


def test_charge_is_complete_when_it_is_made() -> None:
    request = a_placement_request("r", num_output_tokens=30, max_output_tokens=100, tenant="alice")
    charge = Charge(request, PLACEMENT, LengthHistogram(), Work(0.1, 0.05, 0.2), 10, None, 5.0)
    assert (charge.request_id, charge.tenant, charge.kv_tokens, charge.slo_tpot_s) == ("r", "alice", 10, 0.05)
    assert (charge.prefill_s, charge.joins_at, charge.engine_s) == (0.1, 5.2, 0.1)
    assert charge.most_tokens == 70.0, "a resumed request may generate the rest"
    assert charge.runs_on == "d0"
