"""When a refused request would be let in: what Retry-After says."""

from math import ceil

from cluster.types import Prediction
from router.cost import MARGIN, Ask, DecodePart, stretched
from router.fleet import WorkerState

LEAST_RETRY_S, MOST_RETRY_S = 1.0, 60.0
MOST_BUSY = 0.95


def wait_s(ask: Ask, prediction: Prediction, decode: WorkerState | None, load: float, num_before: int) -> float:
    """Until the request could be expected to meet its SLO: queues that are too long drain, as far as those who come
    meanwhile let them, and residents of the decode worker end.

    `load`: share of the workers' time that placements take, in [0, 1]; `num_before`: who waits before it.
    """
    late_s = max(0.0, prediction.ttft_s - ask.age_s - MARGIN * ask.slo.ttft_s)
    draining_s = late_s / (1.0 - min(MOST_BUSY, load))
    decoding_s = _until_fast(ask, DecodePart(ask, decode)) if decode is not None else 0.0
    return max(draining_s, decoding_s) * (1.0 + num_before / 10.0)


def retry_after_s(wait_s: float, jitter: float) -> float:
    """Whole seconds. `jitter` in [0, 1) spreads those who come back over +-20 %."""
    spread = wait_s * (0.8 + 0.4 * jitter)
    return float(ceil(min(max(spread, LEAST_RETRY_S), MOST_RETRY_S)))


def _until_fast(ask: Ask, decode: DecodePart) -> float:
    """Until enough residents have ended for the request's TPOT, and for its memory."""
    wait = decode.memory_wait_s()
    for finish_s in (0.0, *decode.outlook.finish_s):
        if stretched(decode.step_with(ask, finish_s), ask.outputs[1], decode.duty) <= MARGIN * ask.slo.tpot_s:
            return max(wait, finish_s)
    return max(wait, decode.outlook.finish_s[-1] if decode.outlook.finish_s else 0.0)
