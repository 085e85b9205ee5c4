"""Whether a request is let in, waits in the Scheduler's queue, or is refused with an honest Retry-After.

A request is let in where it is expected to add goodput: its own chance to meet its SLO is larger than the number of
others that would miss theirs because of it. So on an idle service everybody is let in, however late. Others wait as
long as they can still make it: the queue is ordered by SLO class, then by deadline, and a request that has waited long
rises by a class. What cannot make it any more is refused. The highest class is let in even when it will be late, up to
a point.

The prediction looks at the moment at which the request would decode, not at the load of now: judging by that makes
prefill and decode load swing in anti-phase (Mooncake, prediction-based early rejection).
"""

from enum import Enum
from typing import Final

from cluster.messages.ids import SloClass
from cluster.messages.placement import PlacementRequest, Prediction, Slo
from router.placement.candidates import Choice
from router.placement.placement_input import PlacementInput

HIGH_CLASS_LATENESS: Final = 2.0
"""The highest class is let in up to this multiple of its objectives."""
UNFAIR_MARGIN: Final = 0.3
"""A tenant far above its share must be expected to meet its objectives with so much to spare, while others wait."""
LATER_SHARE: Final = 0.7
"""Of the victims among requests yet to come, that counts against letting one in."""
AGEING: Final = 2.0
"""A request rises by a class for each such multiple of its TTFT objective that it has waited."""
MAX_QUEUE: Final = 2000

"""Who is served first."""


class Verdict(Enum):
    ADMIT = "admit"
    WAIT = "wait"


def judge(placement_input: PlacementInput, choice: Choice, excess: float, is_contended: bool) -> Verdict:
    """`excess`: what its tenant has used, as a multiple of its share. `is_contended`: others had to wait lately."""
    prediction = choice.prediction
    if prediction is None or is_exempt(placement_input.request) or _finds_idle(choice):
        return Verdict.ADMIT
    if placement_input.request.slo_class is SloClass.INTERACTIVE:
        return Verdict.ADMIT if lateness(prediction, placement_input.slo) < HIGH_CLASS_LATENESS else Verdict.WAIT
    least = 0.0
    if is_contended and excess > 1.0:
        least = UNFAIR_MARGIN * min(1.0, excess - 1.0)
    return Verdict.ADMIT if gain(prediction) > least else Verdict.WAIT


def gain(prediction: Prediction) -> float:
    """Requests within their SLO that a placement is expected to add, or to take away. Those that are yet to come may
    find another way.
    """
    return 1.0 - prediction.risk - prediction.victims - LATER_SHARE * prediction.future_victims


def is_exempt(request: PlacementRequest) -> bool:
    """It was let in before, or an operator has chosen its path."""
    return bool(request.num_output_tokens or request.excluded or request.path is not None)


def _finds_idle(choice: Choice) -> bool:
    """Its workers have nothing else to do: there is no sooner, and nobody whom it could harm."""
    workers = [worker for worker in (choice.prefill, choice.decode) if worker is not None]
    return not any(worker.charges or worker.running.num_unknown for worker in workers)


def lateness(prediction: Prediction, slo: Slo) -> float:
    """The larger share of its objectives that a request is expected to take."""
    return max(prediction.ttft_s / slo.ttft_s, prediction.tpot_s / slo.tpot_s)


def band(slo_class: SloClass, waited_s: float, ttft_s: float) -> int:
    """Who waits in front: lower is served first."""
    return max(0, slo_class.rank - int(waited_s / (AGEING * ttft_s)))
