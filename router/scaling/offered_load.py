"""OfferedLoad: what clients ask for, counted when they ask, and what became of it. Pure.

Who counts at the end of requests measures what the workers can do, and never more than that. So a request counts when
it is asked for, also one that is refused.
"""

from typing import Final, final

from cluster.messages.ids import RequestId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.scaling import OfferedRequest
from cluster.messages.scheduler_events import RequestClosed
from cluster.slo import SloConfig
from router.admission.verdict import is_replaced
from router.load.charge import Charge, Stage

SAMPLE_SIZE: Final = 512
"""Requests of the sample. More takes memory and time to read; fewer makes its means follow chance."""
SAMPLE_EVERY_S: Final = 0.1
"""Mean time between two requests of the sample where many come, in seconds. Longer makes the sample old before it is
large; shorter has it cover less time.
"""
GAP_SHARE: Final = 0.05
"""Weight of the newest gap in the mean time between two requests of the sample. Higher samples the requests of a burst
more sparsely than others; lower follows a change of the rate late.
"""
OUTPUT_SHARE: Final = 0.02
"""Weight of the newest ended request in the mean output. Higher follows chance; lower learns late that answers have
become longer.
"""
PRIOR_OUTPUT: Final = 200.0
"""Output tokens that a request is taken to have before any has ended. It matters for the first seconds only."""


@final
class _Sampled:
    """A request of the sample."""

    __slots__ = ("num_cached", "num_output", "num_prompt", "request_id", "tpot_s", "ttft_per_prefill", "ttft_s")

    def __init__(self, request: PlacementRequest, slo: SloConfig) -> None:
        objective = slo.of(request.slo_class)
        self.request_id: RequestId = request.request_id
        self.num_prompt: int = request.num_prompt_tokens
        self.num_cached = 0
        self.num_output: int | None = None
        """None until the request has ended."""
        self.ttft_s, self.ttft_per_prefill = objective.ttft_s, objective.ttft_per_prefill
        if request.ttft_s is not None and request.ttft_s < objective.ttft_s:
            self.ttft_s, self.ttft_per_prefill = request.ttft_s, 0.0
        self.tpot_s: float = min(objective.tpot_s, request.tpot_s or objective.tpot_s)


@final
class OfferedLoad:
    def __init__(self, slo: SloConfig) -> None:
        self._slo = slo
        self.num_arrived = 0
        """Requests that were asked for."""
        self.num_good = 0
        """Requests that finished within both objectives."""
        self.num_missed = 0
        """Requests that finished beyond an objective, were refused for overload, or ended by a client that left or a
        failure when their first token was late.
        """
        self._sample: list[_Sampled] = []
        """A ring, once it is full."""
        self._next = 0
        """Place in the ring of the next sampled request."""
        self._by_id: dict[RequestId, _Sampled] = {}
        """Requests of the sample that have not ended."""
        self._sampled_at: float | None = None
        self._gap_s = SAMPLE_EVERY_S
        self._stride = 1
        """Every so many requests, one is in the sample: requests of a burst as likely as others."""
        self._output = PRIOR_OUTPUT

    def asked(self, request: PlacementRequest, now: float) -> None:
        """A request asks for a placement."""
        if is_replaced(request):
            return
        self.num_arrived += 1
        if self.num_arrived % self._stride:
            return
        self._set_stride(now)
        sampled = _Sampled(request, self._slo)
        if len(self._sample) < SAMPLE_SIZE:
            self._sample.append(sampled)
        else:
            self._by_id.pop(self._sample[self._next].request_id, None)
            self._sample[self._next] = sampled
            self._next = (self._next + 1) % SAMPLE_SIZE
        self._by_id[request.request_id] = sampled

    def answered(self, request_id: RequestId, answer: Placement | Rejection) -> None:
        """The request was placed or refused."""
        if isinstance(answer, Rejection):
            self.num_missed += answer.is_overload
            self._by_id.pop(request_id, None)
        elif (sampled := self._by_id.get(request_id)) is not None:
            sampled.num_cached = min(answer.num_hit_tokens, max(0, sampled.num_prompt - 1))

    def closed(self, charge: Charge, event: RequestClosed, now: float) -> None:
        """A placed request has ended."""
        sampled = self._by_id.pop(event.request_id, None)
        num_output = event.num_output_tokens
        if num_output is None:
            self.num_missed += _was_late(charge, event, now)
            return
        is_good = (event.ttft_s is None or event.ttft_s <= charge.slo_ttft_s) and (
            event.tpot_s is None or event.tpot_s <= charge.slo_tpot_s
        )
        self.num_good += is_good
        self.num_missed += not is_good
        of_each = round(num_output / charge.num_sequences)
        self._output += OUTPUT_SHARE * (of_each - self._output)
        if sampled is not None:
            sampled.num_output = of_each

    def sample(self) -> list[OfferedRequest]:
        """In order of arrival."""
        usual = max(1, round(self._output))
        return [
            OfferedRequest(
                sampled.num_prompt,
                sampled.num_cached,
                max(1, usual if sampled.num_output is None else sampled.num_output),
                sampled.ttft_s,
                sampled.ttft_per_prefill,
                sampled.tpot_s,
            )
            for sampled in (*self._sample[self._next :], *self._sample[: self._next])
        ]

    def _set_stride(self, now: float) -> None:
        gap_s = now - self._sampled_at if self._sampled_at is not None else self._gap_s
        self._sampled_at = now
        self._gap_s += GAP_SHARE * (gap_s - self._gap_s)
        if self._gap_s < SAMPLE_EVERY_S:
            self._stride += 1
        elif self._gap_s > 2 * SAMPLE_EVERY_S and self._stride > 1:
            self._stride -= 1

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        assert len(self._sample) <= SAMPLE_SIZE
        assert len(self._by_id) <= len(self._sample)
        assert self._next == 0 or len(self._sample) == SAMPLE_SIZE


def _was_late(charge: Charge, event: RequestClosed, now: float) -> bool:
    """Whether the first token of a request that did not finish was late, or was due before the end and did not come. A
    request that was placed anew may have had its first token before, so that without a time it does not count.
    """
    if event.ttft_s is not None:
        return event.ttft_s > charge.slo_ttft_s
    return charge.attempt == 1 and charge.stage is not Stage.DECODING and now > charge.due_at
