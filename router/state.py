"""RouterState: what the Scheduler knows, and what it decides. A facade over three machines, each with its own
`validate`. Pure.

- LiveWorkers (router/load/live_workers.py): the workers that report, their load and their caches.
- Charges (router/load/charges.py): the open requests that are charged to workers, and how far they have come.
- AdmissionControl (router/admission/admission_control.py): the requests that wait, and the answer to each.

`now` is monotonic seconds. RouterState has no clock and sets no timer: its owner (router/pending_placements.py) calls
`decide` after every event and at `next_decision_at`.
"""

from typing import Final, assert_never, final

from cluster.config.scheduler import MAX_INDEXED_BLOCKS
from cluster.messages.ids import Address, IngressId, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scheduler_events import (
    EngineLostWith,
    FirstToken,
    HandoffChecked,
    Pause,
    PrefillDone,
    RequestClosed,
    SchedulerEvent,
    WorkerLeft,
    WorkerLost,
)
from cluster.messages.views import ClusterView, QueuedRequest, RosterChange
from cluster.slo import SloConfig
from router.admission.admission_control import AdmissionControl, Decision
from router.admission.waiting_queue import MAX_QUEUE
from router.load.charges import Charges
from router.load.live_workers import LiveWorkers
from router.load.report_exchange import ReportExchange
from router.placement.candidates import Policy
from router.placement.goodput import goodput
from router.placement.placer import Placer
from router.quarantine.quarantine import Quarantine
from router.scaling.load_reader import LoadReader
from router.scaling.offered_load import OfferedLoad
from router.status.status_reader import StatusReader

MOST_KV_MESSAGES_PER_S: Final = 4000.0
"""Messages of KV events per second, of all workers together. One takes the Scheduler some 20 us beside its blocks.
Higher costs the Scheduler time; lower tells it later of what workers cache, which it expects until then.
"""


@final
class RouterState:
    def __init__(
        self,
        slo: SloConfig | None = None,
        policy: Policy = goodput,
        *,
        admits_all: bool = False,
        preempts: bool = True,
        max_indexed_blocks: int = MAX_INDEXED_BLOCKS,
    ) -> None:
        """`admits_all`: no request waits, and no request is refused for being late. `preempts`: running requests pause
        for those of higher classes.
        """
        slo = slo or SloConfig()
        self.workers = LiveWorkers(max_indexed_blocks)
        """The workers that report, for drains."""
        self.models = self.workers.models
        """The latency models, for metrics."""
        self.index = self.workers.index
        """The prefix index, for metrics."""
        self.trust = self.workers.trust
        """What verified handoffs have shown, for metrics."""
        self.suspects = self.workers.suspects
        """The workers that ingresses cannot reach, for metrics and the log."""
        self.lost = self.workers.lost
        """The workers that have vanished, for metrics and the log."""
        self.by_worker = self.workers.by_id
        """All workers that are known, for metrics."""
        self.quarantined = self.workers.quarantined
        """The workers that answer wrongly, as an ingress tells."""
        self.exchange = ReportExchange(self.workers)
        """The reports as they are sent."""
        self._charges = Charges(self.workers.by_id)
        self._quarantine = Quarantine()
        self._placer = Placer(slo, policy, self.workers, self._charges)
        self._admission = AdmissionControl(
            slo,
            self._placer,
            self.workers,
            self._quarantine,
            admits_all=admits_all,
            preempts=preempts,
        )
        self.queue = self._admission.queue
        """The requests that wait, for metrics."""
        self._offered = OfferedLoad(slo)
        self.load = LoadReader(self.workers, self._offered, lambda: self.num_waiting)
        """The readings for whoever sizes the pools."""
        self.status = StatusReader(
            self.workers,
            self._charges,
            self._quarantine,
            self._placer.paths,
            self._admission.queue.num_by_class,
            self._admission.queued,
        )
        """All that is known, for operators."""

    def handle(
        self, event: WorkerReport | WorkerLeft | SchedulerEvent, now: float, ingress: IngressId | None = None
    ) -> None:
        """`ingress`: the one that tells of the event."""
        match event:
            case WorkerReport():
                self._on_report(event, now)
            case WorkerLeft():
                if event.engine_silent_s is not None:
                    self._quarantine.engine_lost(event.worker, event.engine_silent_s, now)
                    if (known := self.by_worker.get(event.worker)) is not None:
                        self.lost.note(known.pool, event.worker)
                self.workers.forget(event.worker, now)
            case WorkerLost():
                self.workers.suspect(ingress, event.worker, now)
            case PrefillDone():
                self._charges.prefilled(event.request_id, now)
            case FirstToken():
                self._charges.has_first_token(event.request_id, now)
            case RequestClosed():
                self._on_closed(event, now)
            case HandoffChecked():
                prefill, decode = self.workers.report_of(event.prefill), self.workers.report_of(event.decode)
                self.trust.checked(event, prefill, decode, now)
            case EngineLostWith():
                self._quarantine.lost(event.digest, event.worker, event.num_engines_lost, now - event.age_s)
            case _:
                assert_never(event)

    def disconnected(self, worker: WorkerId) -> None:
        """The worker's connection to the Scheduler has ended."""
        self.workers.lose(worker)

    def handle_kv_events(self, events: KvEvents, now: float) -> bool:
        """Returns True to ask for a snapshot of what the worker caches."""
        return self.workers.handle_kv_events(events, now)

    def place(
        self,
        request: PlacementRequest,
        now: float,
        ingress: IngressId | None = None,
        *,
        turns_away: bool = False,
    ) -> Placement | Rejection | None:
        """Choose workers and charge the request to them, anew if it was placed before. Returns None if the request
        waits, and `decide` gives its answer. `turns_away`: more is asked for than can be considered, so the request is
        refused without a look at the workers.
        """
        self._charges.release(request.request_id, now)
        if request.pinned is None:
            self._offered.asked(request, now)
        answer = self._admission.place(request, now, ingress, turns_away=turns_away)
        if answer is not None and request.pinned is None:
            self._offered.answered(request.request_id, answer)
        return answer

    def decide(self, now: float, most: int = MAX_QUEUE) -> list[Decision]:
        """Answers to requests that have waited, in the order of service. Where it gives `most`, more may be due."""
        decisions = self._admission.decide(now, most)
        for request_id, answer in decisions:
            if not isinstance(answer, Exception):
                self._offered.answered(request_id, answer)
        return decisions

    def take_pauses(self) -> list[tuple[IngressId | None, Pause, SloClass]]:
        """The requests that are to pause, with the ingresses that must be asked, and their classes. To be called after
        `place` and `decide`; each pause is given once.
        """
        asked = self._admission.preemption.take_asked()
        return [(charge.ingress, Pause(charge.request_id, charge.attempt), charge.slo_class) for charge in asked]

    def next_decision_at(self) -> float | None:
        """When `decide` has something to do even if no event comes. None if no request waits."""
        return self._admission.next_decision_at()

    def keep_open(self, ingress: IngressId, open_requests: frozenset[RequestId], now: float) -> list[RequestId]:
        """Forget the requests of an ingress that are not among its open ones. Returns those that waited."""
        self._charges.keep_open(ingress, open_requests, now)
        return self._admission.withdraw_of(ingress, open_requests)

    def withdraw_of(self, ingress: IngressId) -> list[RequestId]:
        """An ingress has lost its connection, and with it the answers that it waits for. Returns the requests that
        waited.
        """
        return self._admission.withdraw_of(ingress, frozenset())

    def reply_to(self, report: WorkerReport, now: float) -> ReportReply:
        known = self.workers.by_id.get(report.worker)
        return ReportReply(
            link=self.workers.links.next_order(report.worker, now),
            gone=self.workers.links.gone_for(report.worker, now),
            wants_kv_snapshot=self.index.check(report.worker, report.kv_events_through, now),
            wants_requests=known is not None and known.audit.asked_at is not None,
            kv_events_every_s=len(self.workers.by_id) / MOST_KV_MESSAGES_PER_S,
        )

    def address_of(self, worker: WorkerId) -> Address | None:
        """The address on which a worker listens. None if the worker is not known."""
        report = self.workers.report_of(worker)
        return report.address if report else None

    def queued(self, now: float) -> list[QueuedRequest]:
        """The first requests of the queue, in the order of service."""
        return self._admission.queued(now)

    @property
    def num_waiting(self) -> int:
        return self._admission.num_waiting

    def take_mismatches(self) -> list[str]:
        """Why workers of the two pools cannot hand over to each other, as far as it has come to light since the last
        call.
        """
        return self.workers.kv_formats.take_new()

    def roster(self, since: int, now: float) -> RosterChange:
        """What has changed in the roster of live workers since a version. 0 stands for everything."""
        return self.workers.roster(since, now)

    def view(self, now: float) -> ClusterView:
        workers = self.workers.view(now).workers
        return ClusterView(workers=workers, num_open=len(self._charges), num_waiting=self._admission.num_waiting)

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        self.workers.validate()
        self._charges.validate()
        self._admission.validate()
        self._offered.validate()

    def _on_report(self, report: WorkerReport, now: float) -> None:
        if (added := self.workers.add(report, now)) is not None:
            self._charges.resume(added, now)
        self._charges.compare(self.workers.reported(report, now), report, now)

    def _on_closed(self, event: RequestClosed, now: float) -> None:
        self._admission.withdraw(event.request_id)
        charge = self._charges.find(event.request_id)
        if event.is_harmless:
            self._quarantine.clear(event.digest)
        elif charge is not None and event.num_output_tokens is None:
            self._quarantine.left(event.digest, charge.runs_on, charge.num_engines_lost + 1, now)
        if charge is not None:
            self._placer.learn(charge, event, now)
            if not charge.is_pinned:
                self._offered.closed(charge, event, now)
            self._charges.release(event.request_id, now)
