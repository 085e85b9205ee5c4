"""Every fault at every moment of a request's life, on real processes (matrix.py)."""

import logging

import pytest

from kvtransfer.lease_terms import LeaseEnd
from tests.drills import report
from tests.drills.client import ANSWERED, LEFT
from tests.drills.drill import Measured, run_drill
from tests.drills.faults import FAULTS
from tests.drills.matrix import BYSTANDER_SILENCE_S, CELLS, Cell
from tests.drills.processes import LiveProcesses

logger = logging.getLogger("baton.drills")

pytestmark = [pytest.mark.timeout(900), pytest.mark.full_matrix]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_drill(live: LiveProcesses, cell: Cell, all_measured: list[Measured]) -> None:
    measured = Measured(cell)
    all_measured.append(measured)
    try:
        run_drill(live, cell, measured)
        _check(measured)
    except BaseException as error:
        measured.failure = str(error).partition("\n")[0] or repr(error)
        raise
    finally:
        logger.info("%s", report.line(measured))


def _check(measured: Measured) -> None:
    bounds = measured.cell.bounds
    assert measured.client == FAULTS[measured.cell.fault].client_sees
    assert measured.bystander in (LEFT, ANSWERED), f"the bystander was disturbed: {measured.bystander}"
    assert measured.bystander_silence_s is not None and measured.bystander_silence_s < BYSTANDER_SILENCE_S
    assert measured.silence_s is not None and measured.silence_s < bounds.silence_s
    assert measured.over_s is not None and measured.kv_back is not None and measured.decoding is not None
    for worker, back in measured.kv_back.items():
        decodes = worker in measured.decoding
        bound_s = bounds.kv_back_since_fault_s(decodes, measured.over_s)
        assert back.earliest_s < bound_s, (
            f"{worker} has its KV blocks back {back.earliest_s:.1f} s after the fault, not within {bound_s:.1f} s; it"
            f" {'may have decoded' if decodes else 'did not decode'} the answer, and all was over after"
            f" {measured.over_s:.1f} s"
        )
    assert measured.leases_ended is not None
    assert measured.leases_ended[LeaseEnd.EXPIRED] <= measured.cell.max_expired, measured.leases_ended
    assert measured.whole_s is not None and measured.whole_s < bounds.whole_s
