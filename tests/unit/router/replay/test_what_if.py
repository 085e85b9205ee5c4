"""Changes of the config that can be tried on a log, and how answers differ."""

import pytest

from cluster.messages.ids import Path, WorkerId
from cluster.messages.placement import Placement, Rejection
from router.recording.records import Answer
from router.replay.what_if import BadChange, Change, Changes, change_of, parse_changes
from tests.unit.router.recording.test_frames import HEADER

ON_D0 = Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="")
ON_D1 = Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d1"), why="")
ON_P0 = Placement(path=Path.PREFILL, prefill=WorkerId("p0"), decode=None, why="")
REFUSED = Rejection(retry_after_s=1.0, why="")


@pytest.mark.parametrize(
    ("then", "now", "change"),
    [
        (ON_D0, ON_D0, Change.SAME),
        (ON_D0, ON_D1, Change.OTHER_WORKERS),
        (ON_D0, ON_P0, Change.OTHER_PATH),
        (ON_D0, REFUSED, Change.REFUSED),
        (REFUSED, ON_D0, Change.PLACED),
        (REFUSED, REFUSED, Change.STILL_REFUSED),
        ("a defect", REFUSED, Change.UNDECIDED),
    ],
)
def test_answers_differ_in_workers_path_or_refusal(then: Answer, now: Answer, change: Change) -> None:
    assert change_of(then, now) is change


def test_objectives_are_changed_one_by_one_and_the_others_stay() -> None:
    changes = parse_changes(["slo.batch.tpot_s=0.3", "slo.batch.ttft_s=9", "scheduler.max_indexed_blocks=2048"])
    slo = changes.slo_of(HEADER)
    assert (slo.batch.tpot_s, slo.batch.ttft_s, changes.max_indexed_blocks) == (0.3, 9.0, 2048)
    assert slo.batch.outage_wait_s == HEADER.slo.batch.outage_wait_s
    assert slo.standard == HEADER.slo.standard


def test_objective_that_cannot_be_is_refused_with_its_name() -> None:
    with pytest.raises(BadChange, match=r"tpot_s"):
        Changes(slo={"batch": {"tpot_s": 0.0}}).slo_of(HEADER)
