"""From a choice to the placement that is answered, and to the charge on its workers."""

from cluster.messages.ids import IngressId
from cluster.messages.placement import Placement
from router.load.charge import Charge
from router.load.live_workers import LiveWorkers
from router.placement.candidates import Choice
from router.placement.cost import MARGIN
from router.placement.placement_input import PlacementInput
from router.placement.work import unpriced_work
from router.trust.handoff_trust import HandoffTrust


def commit(placement_input: PlacementInput, choice: Choice, workers: LiveWorkers, ingress: IngressId | None) -> Charge:
    """Charge the request to the chosen workers, until `Charges.release`."""
    prefill, decode, now = choice.prefill, choice.decode, placement_input.now
    work = choice.work
    if work is None:
        work = unpriced_work(placement_input, prefill, decode, workers.models)
    request, kv_tokens = placement_input.request, placement_input.kv_tokens
    placement = _placement_of(placement_input, choice, workers.trust)
    charge = Charge(request, placement, placement_input.lengths, work, kv_tokens, placement_input.due_at, ingress, now)
    prefilling, generating = prefill or decode, decode or prefill
    assert prefilling is not None
    assert generating is not None
    prefilling.queue_prefill(charge, work.stall_s, now)
    generating.expect(charge)
    if prefilling is not generating:
        prefilling.expect_outbound(charge)
        prefilling.queue_transfer(charge.joins_at)
        generating.queue_transfer(charge.joins_at)
    return charge


def _placement_of(placement_input: PlacementInput, choice: Choice, trust: HandoffTrust) -> Placement:
    prefilling = choice.prefill or choice.decode
    handoff = trust.terms(choice.prefill.report, choice.decode.report) if choice.prefill and choice.decode else None
    is_held = choice.prediction is not None and choice.prediction.holds_first
    return Placement(
        path=choice.path,
        prefill=choice.prefill.worker if choice.prefill else None,
        decode=choice.decode.worker if choice.decode else None,
        why=choice.why,
        slo=placement_input.slo,
        num_hit_tokens=placement_input.hit(prefilling) if prefilling else 0,
        predicted=choice.prediction,
        considered=choice.considered,
        holds_first_until_s=MARGIN * placement_input.slo_ttft_s if is_held else 0.0,
        num_engines_lost=placement_input.request.num_engines_lost,
        handoff=handoff,
    )
