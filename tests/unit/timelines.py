"""What every timeline of a route receipt must keep."""

from collections.abc import Sequence
from itertools import groupby

from cluster.messages.timeline import TimelineStage
from router.session.receipt import RouteReceipt
from router.session.timeline import MAX_STAGES

NOTHING_S = 2e-6
"""What counts as rounding."""


def check_explains(receipt: RouteReceipt) -> None:
    """The stages until the first token leave no time out, and stages of one place do not overlap."""
    last_s = max(stage.end_s for stage in receipt.stages)
    check_covers(receipt.stages, last_s if receipt.ttft_s is None else receipt.ttft_s)
    check_apart(receipt.stages)
    assert all(len(attempt.timeline) <= MAX_STAGES for attempt in receipt.attempts)


def check_covers(stages: Sequence[TimelineStage], until_s: float) -> None:
    covered_s = 0.0
    for stage in sorted(stages, key=lambda stage: stage.start_s):
        assert stage.start_s <= stage.end_s
        if covered_s < until_s:
            assert stage.start_s - covered_s <= NOTHING_S, (covered_s, stage)
        covered_s = max(covered_s, stage.end_s)
    assert until_s - covered_s <= NOTHING_S


def check_apart(stages: Sequence[TimelineStage]) -> None:
    by_place = sorted(stages, key=lambda stage: (stage.place, stage.start_s, stage.end_s))
    for _, of_place in groupby(by_place, key=lambda stage: stage.place):
        end_s = 0.0
        for stage in of_place:
            assert stage.start_s >= end_s - NOTHING_S, stage
            end_s = stage.end_s
