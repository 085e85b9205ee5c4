"""The rule of admission: whether a request is admitted or has to wait.

- A request is admitted where it is expected to add goodput: its own chance to meet its SLO is larger than the number of
  other requests that would miss theirs because of it. So an idle service admits every request, however late.
- Other requests wait for as long as they can still meet their SLO, in the order of SLO class and then of deadline. A
  request that can no longer meet its SLO is refused.
- The highest class is admitted even when it will be late, up to a point, and unless it makes others late.
- A request that was admitted before, and whose worker failed, is judged by the harm that it does and not by its own
  lateness: its client has an open stream, or was promised one. So the requests of a worker that dies wait for room,
  ahead of new requests of their class, and do not fill the other workers at once. A paused request is judged as a new
  one, so that it does not take back what it has just left.

The prediction is for the moment at which the request would decode, not for the load of now. Judged by the load of now,
requests are admitted while decode workers are idle and refused when these requests reach decoding, so that prefill and
decode workers are overloaded in turn (Mooncake, prediction-based early rejection).
"""

from enum import Enum
from typing import Final

from cluster.messages.placement import PlacementRequest, Prediction, Slo
from router.placement.candidates import Choice
from router.placement.placement_input import PlacementInput
from router.placement.work import HIGHEST_RANK

HIGH_CLASS_LATENESS: Final = 2.0
"""Multiple of its objectives up to which the highest class is admitted. Higher admits requests that are of no use;
lower refuses interactive requests that would be a little late.
"""
HIGH_CLASS_HARM: Final = 1.0
"""Victims up to which the highest class is admitted though it will be late. Higher lets clients that call all their
requests interactive take the goodput of others; lower refuses interactive requests that would be a little late.
"""
UNFAIR_MARGIN: Final = 0.3
"""Gain that the requests of a tenant far above its share must bring while other requests wait. Higher holds such a
tenant back more than other tenants need; lower lets one tenant fill the service.
"""
REPLACED_HARM: Final = 1.0
"""Victims below which a request that was admitted before is placed on other workers. Higher has the requests of a lost
worker delay others; lower keeps their streams silent for longer.
"""
LATER_SHARE: Final = 0.7
"""Share of the victims among requests yet to come that counts against a request. Higher keeps room that may stay
unused; lower admits a request at the cost of the next ones.
"""


class Verdict(Enum):
    ADMIT = "admit"
    WAIT = "wait"


def judge(
    placement_input: PlacementInput, choice: Choice, excess: float, is_contended: bool, *, is_replaced: bool = False
) -> Verdict:
    """`excess`: what the tenant of the request uses, as a multiple of the tenant's share. `is_contended`: requests had
    to wait lately. `is_replaced`: the request was admitted before.
    """
    prediction = choice.prediction
    if prediction is None or placement_input.request.path is not None or _finds_idle(choice):
        return Verdict.ADMIT
    if is_replaced and not placement_input.request.is_paused:
        return Verdict.ADMIT if harm(prediction) < REPLACED_HARM else Verdict.WAIT
    least = 0.0
    if is_contended and excess > 1.0:
        least = UNFAIR_MARGIN * min(1.0, excess - 1.0)
    if gain(prediction) > least:
        return Verdict.ADMIT
    may_be_late = placement_input.rank == HIGHEST_RANK and not least and harm(prediction) < HIGH_CLASS_HARM
    if may_be_late and lateness(prediction, placement_input.slo) < HIGH_CLASS_LATENESS:
        return Verdict.ADMIT
    return Verdict.WAIT


def gain(prediction: Prediction) -> float:
    """Requests within their SLO that a placement is expected to add, or to take away if negative. Requests that are yet
    to come may find another option, so their victims count less.
    """
    return 1.0 - prediction.risk - harm(prediction)


def harm(prediction: Prediction) -> float:
    """Requests that are expected to miss their SLO because of a placement."""
    return prediction.victims + LATER_SHARE * prediction.future_victims


def is_replaced(request: PlacementRequest) -> bool:
    """The request was admitted before, and its worker failed or the request paused."""
    return bool(request.num_output_tokens or request.excluded or request.is_paused)


def _finds_idle(choice: Choice) -> bool:
    """The chosen workers have no requests: to wait brings nothing, and no request can be harmed."""
    workers = [worker for worker in (choice.prefill, choice.decode) if worker is not None]
    return not any(worker.charges or worker.running.num_unknown for worker in workers)


def lateness(prediction: Prediction, slo: Slo) -> float:
    """The larger of the predicted TTFT and TPOT, each as a multiple of its objective."""
    return max(prediction.ttft_s / slo.ttft_s, prediction.tpot_s / slo.tpot_s)
