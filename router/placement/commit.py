"""From a choice to the placement that is answered, and to the charge on its workers."""

from cluster.messages.ids import IngressId
from cluster.messages.placement import Placement
from router.load.charge import Charge
from router.load.worker_state import WorkerState
from router.placement.candidates import Choice
from router.placement.cost import MARGIN, num_chunks, over_link, prefill_s
from router.placement.placement_input import PlacementInput
from router.prediction.latency import LatencyModels


def placement_of(ask: PlacementInput, choice: Choice) -> Placement:
    prefilling = choice.prefill or choice.decode
    is_held = choice.prediction is not None and choice.prediction.holds_first
    return Placement(
        path=choice.path,
        prefill=choice.prefill.worker if choice.prefill else None,
        decode=choice.decode.worker if choice.decode else None,
        why=choice.why,
        slo=ask.slo,
        num_hit_tokens=ask.hit(prefilling) if prefilling else 0,
        predicted=choice.prediction,
        considered=choice.considered,
        holds_first_until_s=MARGIN * ask.slo_ttft_s if is_held else 0.0,
        num_engines_lost=ask.request.num_engines_lost,
    )


def charge(ask: PlacementInput, choice: Choice, models: LatencyModels, ingress: IngressId | None) -> Charge:
    """Charge the request to its workers, until `release`."""
    request, now = ask.request, ask.now
    made = Charge(request.request_id, placement_of(ask, choice), ask.slo, request.slo_class, ask.lengths, now)
    made.tenant = request.tenant
    made.num_engines_lost = request.num_engines_lost
    made.ingress = ingress
    made.num_prompt = ask.num_prompt
    made.num_sequences = ask.num_sequences
    if request.max_output_tokens is not None:
        made.most_tokens = float(request.max_output_tokens - request.num_output_tokens)
    made.kv_tokens = ask.kv_tokens
    if choice.prefill is not None and choice.decode is not None:
        _charge_pair(ask, made, choice.prefill, choice.decode, models)
    else:
        worker = choice.decode or choice.prefill
        assert worker is not None
        _charge_alone(ask, made, worker)
    return made


def engine_s(made: Charge) -> float:
    """What it is expected to take of its workers' time."""
    predicted = made.placement.predicted
    return predicted.gpu_s if predicted else made.prefill_s


def _charge_pair(
    ask: PlacementInput, made: Charge, prefill: WorkerState, decode: WorkerState, models: LatencyModels
) -> None:
    made.prefill_s = prefill_s(ask, prefill)
    prefilled_s = prefill.queue_s(ask.now) + made.prefill_s
    made.joins_at = ask.now + over_link(ask, prefill, decode, models, prefilled_s)
    prefill.queue_prefill(made, made.prefill_s, ask.now)
    prefill.outbound[made.request_id] = made
    decode.expect(made)
    prefill.link_free_at = decode.link_free_at = made.joins_at


def _charge_alone(ask: PlacementInput, made: Charge, worker: WorkerState) -> None:
    hit, batch = ask.hit(worker), worker.num_decoding
    num_new, most = ask.num_prompt - hit, worker.max_step_tokens
    made.prefill_s = worker.model.times.prefill_s(num_new, hit, most, batch, int(worker.context_tokens(ask.now)))
    made.prefill_s += ask.load_s(worker)
    stall_s = made.prefill_s - (num_chunks(num_new, most, batch) * worker.step_s(ask.now) if batch else 0.0)
    worker.queue_prefill(made, max(0.0, stall_s), ask.now)
    made.joins_at = ask.now + worker.queue_s(ask.now)
    worker.expect(made)
