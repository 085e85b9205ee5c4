"""RouterState: what the Scheduler knows of the workers, the placements it has charged to them, and who waits.

`handle`, `place`, `decide`, `keep_open` and `nobody_waits` are the only mutators; `now` is monotonic seconds. A worker
exists by its reports: the first one adds it, REPORT_TIMEOUT_S without one removes it, so that a restarted Scheduler is
whole again after one report interval. A worker that cannot be reached is out at once, until it reports again. A request
is charged when it is placed (anew, if it was placed before), moves on with what its session tells, and is released when
it is closed, or when its ingress or its worker says that it is not there (router/load/charges.py). One that has to wait
is answered by `decide`, which whoever owns this (router/pending_placements.py) calls after every event and at
`next_decision_at`.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final, assert_never, final

from cluster.messages.ids import Address, IngressId, Pool, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvEvents
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.reports import ReportReply, WorkerReport
from cluster.messages.scheduler_events import (
    EngineLostWith,
    FirstToken,
    PairSuspected,
    PrefillDone,
    RequestClosed,
    SchedulerEvent,
    WorkerLeft,
    WorkerLost,
)
from cluster.messages.views import ClusterView, QueuedRequest
from cluster.slo import SloConfig
from router.admission.admission import MAX_QUEUE, Verdict, judge
from router.admission.arrivals import ArrivalRate
from router.admission.fairness import TenantShares
from router.admission.retry_after import MOST_RETRY_S, RetrySlots, retry_after_s, wait_s
from router.admission.waiting_queue import Waiting, WaitingQueue
from router.load.charges import Charges
from router.load.decode_slack import class_weight
from router.load.prefill_share import PrefillShare, lately
from router.load.worker_state import WorkerState, view_of
from router.placement.candidates import ROSTER_AGE_S, Candidates, Choice, Policy, candidates_of, nobody, roster_of
from router.placement.commit import charge, engine_s
from router.placement.goodput import goodput, least_prefill_s
from router.placement.no_candidates import no_worker
from router.placement.placement_input import Higher, Others, PlacementInput
from router.placement.suspects import SuspectedPairs
from router.prediction.latency import LatencyModels
from router.prediction.output_lengths import OutputLengths
from router.prefixes.index import PrefixIndex
from router.quarantine.quarantine import Quarantine, quarantined

REPORT_TIMEOUT_S: Final = 6.0
"""Several report intervals: shorter drops workers that are merely busy, longer keeps placing on dead ones."""

CONTENDED_S: Final = 5.0
"""For so long after somebody had to wait, fairness between tenants matters."""
GOLDEN_RATIO: Final = 0.618033988749895  # its multiples spread evenly over [0, 1)
NUM_SHOWN: Final = 50
"""Of those that wait: the others are behind them."""
LEAST_PER_S: Final = 1e-3
"""A class with fewer requests has none."""
TRIES: Final = 4
"""Waiting requests that are looked at without success before the others are left for the next time."""

Decision = tuple[RequestId, Placement | Rejection]


@final
class RouterState:
    def __init__(self, slo: SloConfig | None = None, policy: Policy = goodput, *, admits_all: bool = False) -> None:
        """`admits_all`: nobody waits and nobody is refused for being late."""
        self._slo = slo or SloConfig()
        self._policy = policy
        self._admits_all = admits_all
        self._num_refused = 0
        self.models = LatencyModels()
        self.index = PrefixIndex()
        self._workers: dict[WorkerId, WorkerState] = {}
        self._charges = Charges(self._workers)
        self._suspects = SuspectedPairs()
        self._quarantine = Quarantine()
        self._queue = WaitingQueue()
        self._lengths = OutputLengths()
        self._shares = TenantShares()
        self._arrivals = {slo_class: ArrivalRate() for slo_class in SloClass}
        self._prefill_use = PrefillShare()
        self._turns = RetrySlots()
        self._contended_at = float("-inf")
        self._turn = 0
        self._roster = nobody()

    def handle(self, event: WorkerReport | WorkerLeft | SchedulerEvent, now: float) -> None:
        match event:
            case WorkerReport():
                self._on_report(event, now)
            case WorkerLeft():
                self._on_left(event, now)
            case WorkerLost():
                self._on_lost(event.worker)
            case PrefillDone():
                self._charges.prefilled(event.request_id, now)
            case FirstToken():
                self._charges.has_first_token(event.request_id, now)
            case RequestClosed():
                self._on_closed(event, now)
            case PairSuspected():
                self._suspects.add((event.prefill, event.decode), now)
            case EngineLostWith():
                self._quarantine.lost(event.digest, event.worker, event.num_engines_lost, now - event.age_s)
            case _:
                assert_never(event)

    def handle_kv_events(self, events: KvEvents, now: float) -> bool:
        """True: a snapshot of what the worker caches is wanted."""
        if events.worker not in self._workers:  # nobody would forget what it caches
            return True
        return self.index.handle(events, now)

    def place(
        self, request: PlacementRequest, now: float, ingress: IngressId | None = None
    ) -> Placement | Rejection | None:
        """Choose workers and charge the request to them. None: it waits, and `decide` gives the answer."""
        self._charges.release(request.request_id, now)
        self._queue.remove(request.request_id)
        if self._quarantine.holds(request.digest, now):
            return quarantined()
        waiting = Waiting(request, ingress, now)
        self._arrivals[request.slo_class].note(now)
        self._turns.offered(request.slo_class, now)
        answer = self._consider(waiting, now)
        if answer is None:
            self._queue.add(waiting)
        return answer

    def decide(self, now: float) -> list[Decision]:
        """Answers for those that have waited, in the order in which they are served."""
        decisions: list[Decision] = []
        num_failed = 0
        for waiting in self._queue.in_order(now):
            if now < waiting.gives_up_at and (num_failed >= TRIES or now < waiting.try_at):
                continue
            is_refused = self._quarantine.holds(waiting.request.digest, now)
            answer = quarantined() if is_refused else self._consider(waiting, now)
            if answer is None:
                num_failed += 1
                waiting.look_later(now)
                continue
            self._queue.remove(waiting.request.request_id)
            decisions.append((waiting.request.request_id, answer))
        return decisions

    def next_decision_at(self) -> float | None:
        """When `decide` has something to do even if nothing happens."""
        return self._queue.next_look_at()

    def keep_open(self, ingress: IngressId, open_requests: frozenset[RequestId], now: float) -> list[RequestId]:
        """Forget the requests of an ingress that are not among its open ones. Returns those that waited."""
        self._charges.keep_open(ingress, open_requests, now)
        return self._queue.remove_of(ingress, open_requests)

    def nobody_waits(self, ingress: IngressId) -> list[RequestId]:
        """An ingress has lost its connection, and with it the answers that it waits for. Returns what waited."""
        return self._queue.remove_of(ingress, frozenset())

    def prefill_workers(self, now: float) -> frozenset[WorkerId]:
        return frozenset(w.worker for w in self._live(now) if w.pool is Pool.PREFILL)

    def reply_to(self, report: WorkerReport, now: float) -> ReportReply:
        known = self._workers.get(report.worker)
        return ReportReply(
            prefill_workers=self.prefill_workers(now),
            wants_kv_snapshot=self.index.check(report.worker, report.kv_events_through),
            wants_requests=known is not None and known.asked_at is not None,
        )

    def address_of(self, worker: WorkerId) -> Address | None:
        """Where a worker that reports listens."""
        known = self._workers.get(worker)
        return known.report.address if known else None

    def queued(self, now: float) -> list[QueuedRequest]:
        """The first NUM_SHOWN that wait, in the order in which they are served."""
        first = islice(self._queue.in_order(now), NUM_SHOWN)
        return [self._queued(waiting, number, now) for number, waiting in enumerate(first)]

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def view(self, now: float) -> ClusterView:
        return view_of(self._live(now), now)

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        for worker, state in self._workers.items():
            assert worker == state.worker
            state.validate()
        self._charges.validate()
        self.index.validate()

    def _live(self, now: float) -> Iterable[WorkerState]:
        return (w for w in self._workers.values() if now - w.reported_at <= REPORT_TIMEOUT_S and not w.is_lost)

    def _on_report(self, report: WorkerReport, now: float) -> None:
        known = self._workers.get(report.worker)
        model = self.models.model(report.shape.kind)
        if known is None:
            known = self._workers[report.worker] = WorkerState(report, model, now)
            self._roster = nobody()
            self._charges.resume(known, now)
        elif known.is_lost:
            self._roster = nobody()
        if known.reported(report, now):
            self._roster.roomy_until = 0
        for step in report.steps:
            known.model.observe(step)
        for transfer in report.transfers:
            link = self.models.transfer(transfer.prefill, report.worker, report.links.get(transfer.prefill))
            link.observe(transfer.num_tokens * report.shape.kv_bytes_per_token, transfer.seconds)
        self._charges.compare(known, report, now)
        self._forget_the_silent(now)

    def _on_left(self, event: WorkerLeft, now: float) -> None:
        if event.engine_silent_s is not None:
            self._quarantine.engine_lost(event.worker, event.engine_silent_s, now)
        self._forget(event.worker)

    def _on_lost(self, worker: WorkerId) -> None:
        """One ingress says so, so that the worker may well live: what is known of it is kept until it is silent."""
        if (known := self._workers.get(worker)) is not None:
            known.is_lost = True
            self._roster = nobody()

    def _forget(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)
        self._roster = nobody()
        self.index.forget(worker)
        self.models.forget(worker)

    def _on_closed(self, event: RequestClosed, now: float) -> None:
        self._queue.remove(event.request_id)
        made = self._charges.find(event.request_id)
        if event.is_harmless:
            self._quarantine.clear(event.digest)
        elif made is not None and event.num_output_tokens is None:
            self._quarantine.left(event.digest, made.runs_on, made.num_engines_lost + 1, now)
        if made is None:
            return
        if event.num_output_tokens is not None:
            self._lengths.add((made.tenant, made.slo_class), round(event.num_output_tokens / made.num_sequences))
            if made.placement.predicted is not None:
                self.models.bias.observe(made.placement.predicted, event.ttft_s, event.tpot_s, event.num_output_tokens)
        self._charges.release(event.request_id, now)

    def _consider(self, waiting: Waiting, now: float) -> Placement | Rejection | None:
        """None: it has to wait."""
        if now - self._roster.made_at > ROSTER_AGE_S:
            self._roster = roster_of(self._live(now), now, self._turn)
        if self._is_outage(waiting, now) and not self._admits_all:
            return self._outlast(waiting, now)
        if waiting.is_outage:
            waiting.begin_anew(now)
        waiting.suspect(self._quarantine.num_lost(waiting.request.digest, now))
        ask = self._ask(waiting, now)
        candidates = self._candidates(ask, now)
        choice = self._policy(ask, candidates, self.models)
        if choice is None:
            return no_worker(waiting.request, self._roster)
        if self._admits_all:
            return self._charge(ask, choice, waiting.ingress)
        is_contended = now - self._contended_at < CONTENDED_S
        verdict = judge(ask, choice, self._shares.excess(waiting.request.tenant, now), is_contended)
        if verdict is Verdict.ADMIT:
            return self._charge(ask, choice, waiting.ingress)
        self._contended_at = now
        waiting.ttft_s = ask.slo.ttft_s
        waiting.gives_up_at = waiting.since + ask.slo.ttft_s - waiting.age_s - least_prefill_s(ask, candidates)
        if now >= waiting.gives_up_at:
            return self._refusal(ask, choice, waiting, "its SLO cannot be met")
        if len(self._queue) >= MAX_QUEUE:
            return self._refusal(ask, choice, waiting, "too many requests wait")
        return None

    def _is_outage(self, waiting: Waiting, now: float) -> bool:
        """No worker lives, or none that the request was not lost with. Those that report for longer than the dead
        are taken for living have recovered.
        """
        if not self._roster.is_anybody:
            return True
        if not waiting.request.lost:
            return False
        workers = [*self._roster.prefills, *self._roster.decodes]
        if not waiting.request.excluded.issuperset([worker.worker for worker in workers]):
            return False
        if now - waiting.asked_at <= REPORT_TIMEOUT_S:
            return True
        waiting.forgive()
        return False

    def _outlast(self, waiting: Waiting, now: float) -> Rejection | None:
        """No worker lives. None: the request waits for one, as long as its class may."""
        has_room = waiting.is_outage or len(self._queue) < MAX_QUEUE
        waiting.outlast(waiting.asked_at + self._slo.of(waiting.request.slo_class).outage_wait_s)
        return None if has_room and now < waiting.gives_up_at else no_worker(waiting.request, self._roster)

    def _candidates(self, ask: PlacementInput, now: float) -> Candidates:
        return candidates_of(ask, self._roster, self._suspects.held(now), self._turn)

    def _ask(self, waiting: Waiting, now: float) -> PlacementInput:
        request = waiting.request
        hits = self.index.longest(request.block_hashes, now)
        objective = self._slo.of(request.slo_class)
        isolated_s = self._isolated_prefill_s(request.num_prompt_tokens) if objective.ttft_per_prefill else 0.0
        slo = objective.resolve(isolated_s, request.ttft_s, request.tpot_s)
        lengths = self._lengths.of((request.tenant, request.slo_class))
        age_s = waiting.age_s + now - waiting.since
        return PlacementInput(request, slo, hits, lengths, age_s, self._others(request, isolated_s, now), now)

    def _others(self, request: PlacementRequest, isolated_s: float, now: float) -> Others:
        arrivals_per_s, higher = 0.0, list[Higher]()
        for slo_class, rate in self._arrivals.items():
            per_s = rate.per_s(now)
            if per_s <= LEAST_PER_S:
                continue
            weight = class_weight(slo_class.rank, request.slo_class.rank)
            if weight == 1.0:
                arrivals_per_s += per_s
            else:
                higher.append(Higher(weight * per_s, self._slo.of(slo_class).resolve(isolated_s)))
        prefills, decodes = self._roster.prefills, self._roster.decodes
        return Others(
            arrivals_per_s,
            higher,
            max(1, len(prefills)),
            max(1, len(decodes)),
            lately(self._prefill_use.shares(now)),
            sum([1 for worker in decodes if worker.charges]) / max(1, len(decodes)),
        )

    def _isolated_prefill_s(self, num_prompt: int) -> float:
        """What the prompt takes alone, with nothing cached, on the kind of worker that would prefill it."""
        workers = self._roster.prefills or self._roster.decodes
        if not workers:
            return 0.0
        return workers[0].model.times.prefill_s(num_prompt, 0, workers[0].max_step_tokens)

    def _charge(self, ask: PlacementInput, choice: Choice, ingress: IngressId | None) -> Placement:
        made = charge(ask, choice, self.models, ingress)
        self._charges.add(made)
        for worker in (made.placement.prefill, made.placement.decode):
            if worker is not None:
                self.index.predict(worker, ask.request.block_hashes, ask.now)
        if made.placement.prefill is not None:
            self._prefill_use.note(made.prefill_s / max(1, len(self._roster.prefills)), ask.now)
        self._shares.charge(made.tenant, engine_s(made), ask.now)
        self._turns.admitted(ask.now)
        self._turn += 1
        return made.placement

    def _refusal(self, ask: PlacementInput, choice: Choice | None, waiting: Waiting, why: str) -> Rejection:
        """For its load."""
        num_before = self._queue.num_before(waiting, ask.now)
        self._num_refused += 1
        wait = self._turns.take(ask.request.slo_class, self._wait_s(ask, choice, num_before), ask.now)
        seconds = retry_after_s(wait, self._num_refused * GOLDEN_RATIO % 1.0)
        return Rejection(retry_after_s=seconds, why=why, is_overload=True)

    def _wait_s(self, ask: PlacementInput, choice: Choice | None, num_before: int) -> float:
        generating = (choice.decode or choice.prefill) if choice is not None else None
        if choice is None or choice.prediction is None or generating is None:
            return MOST_RETRY_S
        load = self._shares.seconds_per_s() / max(1, len(self._workers))
        return wait_s(ask, choice.prediction, generating, load, num_before)

    def _queued(self, waiting: Waiting, num_before: int, now: float) -> QueuedRequest:
        ask = self._ask(waiting, now)
        choice = self._policy(ask, self._candidates(ask, now), self.models)
        return QueuedRequest(
            request_id=waiting.request.request_id,
            slo_class=waiting.request.slo_class,
            num_before=num_before,
            waited_s=now - waiting.asked_at,
            wait_s=self._wait_s(ask, choice, num_before),
            gives_up_s=max(0.0, waiting.gives_up_at - now),
        )

    def _forget_the_silent(self, now: float) -> None:
        for worker in [w.worker for w in self._workers.values() if now - w.reported_at > REPORT_TIMEOUT_S]:
            self._forget(worker)
