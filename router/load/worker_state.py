"""One worker's load, as far as the Scheduler knows: the requests charged to it, and what follows from them.

Self-accounting comes first: a request counts from the moment of its placement, whatever the worker's reports say and
however old they are. A report adds the requests that this Scheduler has not placed (from before its restart), and
proves that the worker lives.

Times are monotonic seconds, of the caller.
"""

from math import inf
from typing import Final, final

from cluster.messages.ids import Pool, RequestId
from cluster.messages.reports import WorkerReport
from router.load.charge import Charge, Stage
from router.load.prefill_share import PrefillShare
from router.load.prompt_queue import PromptQueue
from router.load.request_audit import RequestAudit
from router.load.running_requests import RunningRequests
from router.prediction.long_steps import PromptSteps, prompt_steps
from router.prediction.path_bias import PathBias
from router.prediction.worker_model import WorkerModel

QUEUE_WEIGHT: Final = 0.05
"""Seconds of a longer step that a queue of prompts of one second counts as, when decode workers are compared. Higher
avoids decode workers that compute prompts; lower lets requests join where prompts stall them.
"""
GAP_SHARE: Final = 0.2
"""Weight of the newest report in the mean time between reports. Higher follows a change of pace sooner; lower is less
misled by one late report.
"""
LONGEST_GAP_S: Final = 5.0
"""Longest time between two reports that counts in their mean, in seconds. Higher takes a worker that was silent once
for one that reports rarely; lower takes a worker that reports rarely for a stale one.
"""
NUM_MISSED: Final = 3.0
"""Mean times between reports after which a worker counts as stale. Lower avoids workers that are only busy; higher
keeps placing requests on workers that are gone.
"""
LEAST_STALE_S: Final = 1.0
"""Report age up to which no worker is stale, in seconds, however often it reports. Lower avoids workers after one late
report; higher keeps placing requests on workers that are gone.
"""


@final
class WorkerState:
    """One worker. Created by its first report."""

    __slots__ = (
        "_crowded_tpot_s",
        "_report_gap_s",
        "audit",
        "block_size",
        "charges",
        "has_short_steps",
        "host",
        "inbound",
        "inbound_prompt",
        "is_lost",
        "kv_bytes_per_token",
        "kv_capacity",
        "kv_reserved",
        "leaves_tokens",
        "link_free_at",
        "links",
        "max_step_tokens",
        "model",
        "node_class",
        "num_crowded",
        "outbound",
        "pool",
        "prompts",
        "report",
        "reported_at",
        "room",
        "running",
        "stall_share",
        "worker",
    )

    def __init__(self, report: WorkerReport, model: WorkerModel, bias: PathBias, now: float) -> None:
        self.worker = report.worker
        self.pool = report.pool
        self.host: str = report.address.host
        self.node_class = 0
        """The class of the worker's node (router/links/link_classes.py)."""
        self.stall_share = PrefillShare()
        """Share of the worker's time that prompts take from the requests that decode there. A step that computes a part
        of a prompt gives these requests a token as well, so only what such a step takes longer counts.
        """
        self.running = RunningRequests(model, self.stall_share, bias, now)
        self._read(report)
        self.reported_at = now
        self._report_gap_s = 1.0
        self.is_lost = False
        """The worker can probably not be reached, and has not reported since."""
        self.model = model
        self.charges: dict[RequestId, Charge] = {}
        """All open requests that occupy the worker."""
        self.prompts = PromptQueue(now, by_deadline=report.shape.by_deadline, overtakes=report.shape.overtakes)
        """Requests whose prompt the worker computes or will compute."""
        self.inbound: dict[RequestId, Charge] = {}
        """Requests that the worker will decode and does not decode yet."""
        self.outbound: dict[RequestId, Charge] = {}
        """Requests that the worker prefills, or has prefilled, for a decode worker."""
        self.kv_reserved = 0
        """KV tokens that are reserved for the requests that the worker decodes or will decode, and for the prompts that
        it is to hand over.
        """
        self.inbound_prompt = 0
        """Prompt tokens of `inbound`."""
        self.link_free_at = now
        """When the handoffs that are charged to the worker will have passed its link."""
        self.room: int = report.max_requests
        """Requests that may be charged to the worker."""
        self.leaves_tokens: bool = report.shape.leaves_tokens
        self.audit = RequestAudit()
        self.num_crowded = 0
        """Requests that decode once all inbound requests do."""
        self._crowded_tpot_s: float | None = None
        """The TPOT objective that bounds such a step most. None if it is not known."""

    def __repr__(self) -> str:
        return (
            f"<{self.report.pool} {self.worker}: {len(self.prompts)} prefilling, {len(self.inbound)} inbound, "
            f"{self.running.num} decoding, {self.kv_reserved} KV tokens>"
        )

    @property
    def num_placed(self) -> int:
        return len(self.charges)

    def reported(self, report: WorkerReport, now: float) -> bool:
        """Returns True when the worker has less room than before."""
        room_before = self.room
        self._report_gap_s += GAP_SHARE * (min(now - self.reported_at, LONGEST_GAP_S) - self._report_gap_s)
        self._read(report)
        self.reported_at = now
        self.is_lost = False
        num_unknown = max(0, report.load.num_running + report.load.num_waiting - len(self.charges))
        self.room = report.max_requests - num_unknown
        usage = report.load.kv_cache_usage
        used = min(usage, 1.0) * report.shape.kv_capacity_tokens if usage > 0.0 else 0.0
        self.running.set_unknown(num_unknown, max(0.0, used - self.kv_reserved) if num_unknown else 0.0, now)
        self._update_steps()
        return self.room < room_before

    def is_stale(self, now: float) -> bool:
        """The worker has missed several reports, and may be gone."""
        return now - self.reported_at > max(LEAST_STALE_S, NUM_MISSED * self._report_gap_s)

    def prompt_steps(self, num_new: int, context_tokens: float) -> PromptSteps:
        """How the worker computes `num_new` tokens of a prompt beside the running and the inbound requests.
        `context_tokens`: tokens of the prompt before a chunk of them.
        """
        batch = self.num_crowded
        most = max(1, self.max_step_tokens - batch)
        if not self.has_short_steps or not (self.running.charges or self.inbound):
            return PromptSteps(most)
        bound, decode_s = self.model.kind.bound, self.running.crowded_step_s
        if self._crowded_tpot_s is None:
            objectives = [*self.running.num_by_tpot, *[charge.slo_tpot_s for charge in self.inbound.values()]]
            self._crowded_tpot_s = bound.binding_tpot_s(objectives, decode_s)
        times, running, most = self.model.times, self.running, max(1, min(most, num_new))
        steps = prompt_steps(times, bound, batch, decode_s, self._crowded_tpot_s, most, context_tokens)
        if not times.experts_s or not self.inbound or not running.charges:
            return steps
        # An objective that the running requests keep may count as lost once the inbound ones decode, too. But these
        # cannot decode before their prompts are computed, at the pace that the running ones allow.
        now_s = running.last_step_s
        steps_now = prompt_steps(times, bound, running.num, now_s, running.binding_tpot_s, most, context_tokens)
        token_s = steps.token_s(times, batch, decode_s, context_tokens)
        return steps_now if steps_now.token_s(times, running.num, now_s, context_tokens) > token_s else steps

    def crowding_s(self, now: float) -> float:
        """Length of a step once all inbound requests decode, and what the queued prompts add to it: those that a new
        prompt waits for, and those that it would overtake and delay. In seconds, and cheap to compute.
        """
        if not self.prompts.charges:
            return self.running.crowded_step_s
        return self.running.crowded_step_s + QUEUE_WEIGHT * self.prompts.seconds(now)

    def queue_prefill(self, charge: Charge, stall_s: float, now: float) -> None:
        """The worker is to compute a prompt, which takes `stall_s` from the requests that decode on the worker."""
        self.charges[charge.request_id] = charge
        self.prompts.add(charge, now)
        if stall_s:
            self.stall_share.note(stall_s, now)

    def expect_outbound(self, charge: Charge) -> None:
        """The worker is to hand this request over."""
        self.outbound[charge.request_id] = charge
        self.kv_reserved += charge.num_prompt

    def queue_transfer(self, free_at: float) -> None:
        """A handoff is to occupy the worker's link until `free_at`."""
        self.link_free_at = free_at

    def expect(self, charge: Charge) -> None:
        """The worker is to decode this request."""
        self.charges[charge.request_id] = charge
        self.inbound[charge.request_id] = charge
        self.inbound_prompt += charge.num_prompt
        self.kv_reserved += charge.kv_tokens
        self._update_crowded_step()

    def prefilled(self, request_id: RequestId, now: float) -> None:
        """The prompt is computed. No-op for a request that was not prefilling on the worker."""
        self.prompts.remove(request_id, now)

    def join(self, charge: Charge, now: float) -> None:
        """The worker decodes this request from now on."""
        if self.inbound.pop(charge.request_id, None) is None:
            return
        self.inbound_prompt -= charge.num_prompt
        self.running.join(charge, now)
        self._update_steps()

    def resume(self, charge: Charge, now: float) -> None:
        """The worker was lost and has come back: it still has this request."""
        is_generating = charge.placement.generating == self.worker
        if not is_generating and charge.stage is Stage.DECODING:
            return
        self.charges[charge.request_id] = charge
        if charge.stage is Stage.PREFILLING and (charge.placement.prefill or charge.placement.decode) == self.worker:
            self.queue_prefill(charge, 0.0, now)
        if not is_generating:
            self.expect_outbound(charge)
            return
        self.expect(charge)
        if charge.stage is Stage.DECODING:
            self.join(charge, now)

    def copied(self, bias: PathBias, now: float) -> "WorkerState":
        """The same worker. Requests that decode may leave the copy without leaving the worker, which has none of them
        in its queue of prompts: the copy shares that queue.
        """
        copy = WorkerState(self.report, self.model, bias, self.reported_at)
        copy._report_gap_s, copy.is_lost, copy.node_class = self._report_gap_s, self.is_lost, self.node_class
        copy.stall_share, copy.running = self.stall_share, self.running.copied(self.stall_share, now)
        copy.charges, copy.prompts = dict(self.charges), self.prompts
        copy.inbound, copy.outbound = dict(self.inbound), dict(self.outbound)
        copy.kv_reserved, copy.inbound_prompt = self.kv_reserved, self.inbound_prompt
        copy.link_free_at, copy.room = self.link_free_at, self.room
        copy.num_crowded, copy._crowded_tpot_s = self.num_crowded, self._crowded_tpot_s
        return copy

    def release(self, charge: Charge, now: float) -> None:
        """The request no longer occupies the worker."""
        if self.charges.pop(charge.request_id, None) is None:
            return
        self.prefilled(charge.request_id, now)
        if self.outbound.pop(charge.request_id, None) is not None:
            self.kv_reserved -= charge.num_prompt
        is_inbound = self.inbound.pop(charge.request_id, None) is not None
        if is_inbound:
            self.inbound_prompt -= charge.num_prompt
        if self.running.leave(charge, now) or is_inbound:
            self.kv_reserved -= charge.kv_tokens
        if not self.inbound and not self.outbound:
            self.link_free_at = now
        self._update_steps()

    def validate(self) -> None:
        """Assert every invariant."""
        running = self.running.charges
        self.prompts.validate()
        for part in (self.prompts.charges, self.inbound, self.outbound, running):
            assert part.keys() <= self.charges.keys()
        assert not self.inbound.keys() & running.keys()
        for request_id, charge in self.charges.items():
            assert (request_id in self.outbound) == (charge.placement.generating != self.worker)
        held = sum(charge.kv_tokens for charge in [*self.inbound.values(), *running.values()])
        assert self.kv_reserved == held + sum(charge.num_prompt for charge in self.outbound.values())
        assert self.inbound_prompt == sum(charge.num_prompt for charge in self.inbound.values())
        self.running.validate()

    def _read(self, report: WorkerReport) -> None:
        self.report = report
        self.links = report.links if self.pool is Pool.DECODE else {}
        shape = report.shape
        self.block_size: int = shape.block_size
        self.max_step_tokens: int = max(1, shape.max_step_tokens)
        self.has_short_steps: bool = shape.has_short_steps
        self.running.has_short_steps = shape.has_short_steps
        self.kv_bytes_per_token: int = shape.kv_bytes_per_token
        self.kv_capacity: float = shape.kv_capacity_tokens or inf
        """KV tokens that fit into the engine's memory."""

    def _update_steps(self) -> None:
        self.running.update_step()
        self._update_crowded_step()

    def _update_crowded_step(self) -> None:
        running, num_inbound = self.running, len(self.inbound)
        self.num_crowded = running.num + num_inbound
        running.crowded_step_s = running.step_beside_s(num_inbound, self.inbound_prompt) if self.num_crowded else 0.0
        self._crowded_tpot_s = None
