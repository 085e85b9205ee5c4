"""What each worker has to do, as far as the Scheduler knows: the requests charged to it, and what follows from them.

Self-accounting comes first: a request counts from the moment at which it is placed, whatever the worker's reports say
and however old they are. A report adds what nobody here has charged (requests from before a restart of the Scheduler),
and says that the worker lives.

Times are monotonic seconds, of the caller.
"""

from collections.abc import Iterable
from math import inf
from typing import Final, final

from cluster.messages.ids import RequestId
from cluster.messages.reports import WorkerReport
from cluster.messages.views import ClusterView, WorkerView
from router.load.charge import Charge, Stage
from router.load.decode_slack import NOTHING, DecodeSlack, LookAhead
from router.load.prefill_share import PrefillShare, share_over
from router.prediction.latency import LatencyModel

OUTLOOK_AGE_S: Final = 0.05
"""How old a worker's outlook may get. Its residents' slack changes by no more than that in the meantime."""
MIN_STEP_S: Final = 1e-6
PREFILL_SHARE: Final = 0.05
"""A worker that computes prompts for a second is avoided like one whose steps are so many seconds longer."""


@final
class WorkerState:
    """One worker. Created by its first report."""

    __slots__ = (
        "_clock_at",
        "_context_base",
        "_outlook",
        "_outlook_at",
        "_prefill_free_at",
        "_report_gap_s",
        "_steps",
        "asked_at",
        "block_size",
        "charges",
        "crowd_s",
        "duty",
        "inbound",
        "inbound_prompt",
        "is_lost",
        "kv_bytes_per_token",
        "kv_capacity",
        "kv_reserved",
        "last_step_s",
        "leaves_tokens",
        "link_free_at",
        "links",
        "max_step_tokens",
        "model",
        "num_short",
        "num_unknown",
        "outbound",
        "pool",
        "prefilling",
        "report",
        "reported_at",
        "residents",
        "room",
        "unknown_context",
        "worker",
    )

    def __init__(self, report: WorkerReport, model: LatencyModel, now: float) -> None:
        self.worker = report.worker
        self.pool = report.pool
        self._read(report)
        self.reported_at = now
        self.is_lost = False
        """Somebody could not reach it since it last reported."""
        self.model = model
        self.charges: dict[RequestId, Charge] = {}
        """All open requests that occupy this worker."""
        self.prefilling: dict[RequestId, Charge] = {}
        """Those whose prompt it is to compute, oldest first."""
        self.inbound: dict[RequestId, Charge] = {}
        """Those that it will decode and does not yet."""
        self.outbound: dict[RequestId, Charge] = {}
        """Those that it has prefilled, or will, for another worker."""
        self.residents: dict[RequestId, Charge] = {}
        """Those that it decodes."""
        self.kv_reserved = 0
        """KV tokens of what it decodes or will."""
        self.link_free_at = now
        """When the handoffs that are charged to it will have passed its link."""
        self.room: int = report.max_requests
        self.leaves_tokens: bool = report.shape.leaves_tokens
        """Requests that may be charged to it."""
        self.num_unknown = 0
        """Requests that it reports and nobody here has placed."""
        self.num_short = 0
        """Reports in a row that counted fewer requests than it must have (router/load/charges.py)."""
        self.asked_at: float | None = None
        """Since when it is asked which requests it has. None: it is not asked."""
        self.unknown_context = 0.0
        self.inbound_prompt = 0
        """Prompt tokens of those that it will decode."""
        self._prefill_free_at = now
        self._steps = 0.0
        self._clock_at = now
        self.last_step_s = MIN_STEP_S
        """What a step took when somebody last joined or left."""
        self._context_base = 0.0
        self.crowd_s = MIN_STEP_S
        """What a step will take once all who are expected decode."""
        self.duty = PrefillShare()
        """Of the prompts that it computes: on a decode worker, those beside decoding."""
        self._report_gap_s = 1.0
        self._outlook = NOTHING
        self._outlook_at = float("-inf")

    def __repr__(self) -> str:
        return (
            f"<{self.report.pool} {self.worker}: {len(self.prefilling)} prefilling, {len(self.inbound)} inbound, "
            f"{len(self.residents)} decoding, {self.kv_reserved} KV tokens>"
        )

    @property
    def num_placed(self) -> int:
        return len(self.charges)

    @property
    def num_decoding(self) -> int:
        return len(self.residents) + self.num_unknown

    def reported(self, report: WorkerReport, now: float) -> bool:
        """Returns True when it has less room than before."""
        self._advance(now)
        room_before = self.room
        self._report_gap_s += 0.2 * (min(now - self.reported_at, 5.0) - self._report_gap_s)
        self._read(report)
        self.reported_at = now
        self.is_lost = False
        num_reported = report.load.num_running + report.load.num_waiting
        self.num_unknown = max(0, num_reported - len(self.charges))
        self.room = report.max_requests - self.num_unknown
        usage = report.load.kv_cache_usage
        used = min(usage, 1.0) * report.shape.kv_capacity_tokens if usage > 0.0 else 0.0
        self.unknown_context = max(0.0, used - self.kv_reserved) if self.num_unknown else 0.0
        self._changed()
        return self.room < room_before

    def is_stale(self, now: float) -> bool:
        """It has missed several reports: it may be gone."""
        return now - self.reported_at > max(1.0, 3.0 * self._report_gap_s)

    def queue_s(self, now: float) -> float:
        """Until the prompts that are charged to it are computed. One that is late already is expected to be late for as
        long again.
        """
        if not self.prefilling:
            return 0.0
        left = self._prefill_free_at - now
        return left if left > 0 else -left

    def context_tokens(self, now: float) -> float:
        """Of the requests that it decodes, all together."""
        self._advance(now)
        return max(0.0, self._context_base + len(self.residents) * self._steps) + self.unknown_context

    def step_s(self, now: float) -> float:
        """Of a step with the requests that it decodes; with one where it decodes none."""
        self._advance(now)
        return self.last_step_s

    def crowding_s(self, now: float) -> float:
        """Cheap: what a step will take once all who are expected decode, and what prompts take from it meanwhile."""
        return self.crowd_s + PREFILL_SHARE * (self._prefill_free_at - now) if self.prefilling else self.crowd_s

    def outlook(self, now: float) -> DecodeSlack:
        """What its residents can still afford, at most OUTLOOK_AGE_S old."""
        if not self.residents:
            return NOTHING
        if now - self._outlook_at > OUTLOOK_AGE_S:
            self._advance(now)
            self._outlook = self._look_ahead(now)
            self._outlook_at = now
        return self._outlook

    def queue_prefill(self, charge: Charge, stall_s: float, now: float) -> None:
        """`stall_s`: what it takes from the requests that decode here."""
        self.charges[charge.request_id] = charge
        free_at = now + self.queue_s(now)
        self.prefilling[charge.request_id] = charge
        self._prefill_free_at = free_at + charge.prefill_s
        if stall_s:
            self.duty.note(stall_s, now)

    def prefilled(self, request_id: RequestId, now: float) -> None:
        """No-op when it was not prefilling here."""
        if self.prefilling.pop(request_id, None) is not None:
            self._prefill_free_at = now + sum(charge.prefill_s for charge in self.prefilling.values())

    def expect(self, charge: Charge) -> None:
        """It is to decode this request."""
        self.charges[charge.request_id] = charge
        self.inbound[charge.request_id] = charge
        self.inbound_prompt += charge.num_prompt
        self.kv_reserved += charge.kv_tokens
        self._crowd()

    def join(self, charge: Charge, now: float) -> None:
        """It decodes it from now on."""
        if self.inbound.pop(charge.request_id, None) is None:
            return
        self.inbound_prompt -= charge.num_prompt
        self._advance(now)
        charge.start_step = self._steps
        charge.first_at = now
        self.residents[charge.request_id] = charge
        self._context_base += charge.num_prompt - charge.start_step
        self._changed()

    def resume(self, charge: Charge, now: float) -> None:
        """The worker was lost and has come back: it still has this request."""
        is_generating = charge.placement.generating == self.worker
        if not is_generating and charge.stage is Stage.DECODING:
            return
        self.charges[charge.request_id] = charge
        if charge.stage is Stage.PREFILLING and (charge.placement.prefill or charge.placement.decode) == self.worker:
            self.queue_prefill(charge, 0.0, now)
        if is_generating:
            self.expect(charge)
            if charge.stage is Stage.DECODING:
                self.join(charge, now)

    def release(self, charge: Charge, now: float) -> None:
        """The request is over here."""
        if self.charges.pop(charge.request_id, None) is None:
            return
        self.prefilled(charge.request_id, now)
        self.outbound.pop(charge.request_id, None)
        is_decoding = self.inbound.pop(charge.request_id, None) is not None
        if is_decoding:
            self.inbound_prompt -= charge.num_prompt
        if self.residents.pop(charge.request_id, None) is not None:
            self._advance(now, 1)
            self._context_base -= charge.num_prompt - charge.start_step
            if not self.residents:
                self._context_base = 0.0
            is_decoding = True
        if is_decoding:
            self.kv_reserved -= charge.kv_tokens
        if not self.inbound and not self.outbound:
            self.link_free_at = now
        self._changed()

    def validate(self) -> None:
        """Assert every invariant."""
        for part in (self.prefilling, self.inbound, self.outbound, self.residents):
            assert part.keys() <= self.charges.keys()
        assert not self.inbound.keys() & self.residents.keys()
        held = [*self.inbound.values(), *self.residents.values()]
        assert self.kv_reserved == sum(charge.kv_tokens for charge in held)
        assert self.inbound_prompt == sum(charge.num_prompt for charge in self.inbound.values())

    def _read(self, report: WorkerReport) -> None:
        self.report = report
        self.links = report.links
        shape = report.shape
        self.block_size: int = shape.block_size
        self.max_step_tokens: int = shape.max_step_tokens
        self.kv_bytes_per_token: int = shape.kv_bytes_per_token
        self.kv_capacity: float = shape.kv_capacity_tokens or inf
        """Tokens."""

    def _look_ahead(self, now: float) -> DecodeSlack:
        residents = LookAhead(self.last_step_s, self.duty.shares(now))
        next_step = self._steps + 1.0
        for charge in self.residents.values():
            num_generated = next_step - charge.start_step
            num_left = charge.lengths.residual(int(num_generated))
            if num_left > charge.most_tokens - num_generated:
                num_left = max(1.0, charge.most_tokens - num_generated)
            budget_s = charge.slo_tpot_s * (num_generated + num_left - 1.0)
            context = charge.num_prompt + num_generated
            residents.add(budget_s, now - charge.first_at, num_left, context, charge.rank)
        return residents.outlook()

    def _changed(self) -> None:
        context = max(0.0, self._context_base + len(self.residents) * self._steps) + self.unknown_context
        self.last_step_s = max(MIN_STEP_S, self.model.times.decode_s(max(1, self.num_decoding), int(context)))
        self._crowd()

    def _crowd(self) -> None:
        decoding, inbound = len(self.residents) + self.num_unknown, len(self.inbound)
        self.crowd_s = self.last_step_s * ((decoding + inbound + 1) / (decoding + 1) if decoding else inbound)

    def _advance(self, now: float, num_leaving: int = 0) -> None:
        """Move the decode clock: it counts the steps that each resident got a token from."""
        if now == self._clock_at:
            return
        if self.residents or num_leaving:
            duty = share_over(self.duty.shares(now), now - self._clock_at)
            self._steps += max(0.0, now - self._clock_at) * (1.0 - duty) / self.last_step_s
        self._clock_at = now


def view_of(workers: Iterable[WorkerState], now: float) -> ClusterView:
    """A snapshot of these workers and of the links among them."""
    live = {state.worker: state for state in workers}
    return ClusterView(
        workers=[
            WorkerView(
                worker=state.worker,
                pool=state.pool,
                load=state.report.load,
                num_placed=state.num_placed,
                max_requests=state.report.max_requests,
                host=state.report.address.host,
                transport=state.report.transport,
                links={prefill: speed for prefill, speed in state.report.links.items() if prefill in live},
                report_age_s=now - state.reported_at,
            )
            for state in live.values()
        ]
    )
