"""Why a request in the queue is not placed now, for operators. Pure."""

from cluster.messages.views import WaitReason
from router.admission.verdict import Verdict, gain, harm, judge
from router.admission.waiting_queue import Waiting
from router.placement.candidates import Choice
from router.placement.placement_input import PlacementInput


def wait_reason(
    waiting: Waiting, placement_input: PlacementInput, choice: Choice | None, excess: float, *, is_contended: bool
) -> WaitReason:
    """`choice`: what the request would be placed on now. `excess` and `is_contended`: as for `judge`."""
    if waiting.is_outage:
        return WaitReason.NO_WORKER
    if choice is None:
        return WaitReason.NO_ROOM
    verdict = judge(placement_input, choice, excess, is_contended, is_replaced=waiting.is_replaced)
    predicted = choice.prediction
    if verdict is Verdict.ADMIT or predicted is None:
        return WaitReason.DUE
    if gain(predicted) > 0.0 and not waiting.is_replaced:
        return WaitReason.TENANT_SHARE
    return WaitReason.HARM if harm(predicted) > predicted.risk else WaitReason.LATE
