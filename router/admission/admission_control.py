"""AdmissionControl: decides for each request whether it is placed now, waits in the queue, or is refused.

`place` answers a new request or adds it to the queue. `decide` answers requests in the queue: it is called after every
event, and at `next_decision_at`, since queues drain without an event.
"""

from typing import Final, final

from cluster.messages.ids import IngressId, RequestId, SloClass, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.views import QueuedRequest
from cluster.slo import SloConfig
from router.admission.arrivals import ArrivalRate
from router.admission.fairness import TenantShares
from router.admission.preemption import LONGEST_PAUSE_S, Preemption
from router.admission.recent_failures import Failure, Need, RecentFailures
from router.admission.retry_after import MOST_RETRY_S, RetrySlots, retry_after_s, wait_s
from router.admission.verdict import Verdict, gain, harm, is_replaced, judge
from router.admission.wait_reason import wait_reason
from router.admission.waiting_queue import MAX_QUEUE, Waiting, WaitingQueue
from router.load.live_workers import REPORT_TIMEOUT_S, LiveWorkers, WorkersByPool
from router.placement.candidates import Candidates, Choice
from router.placement.goodput import is_hopeless, least_prefill_s
from router.placement.no_candidates import NO_WORKER_RETRY_S, no_room_again, no_worker
from router.placement.placement_input import PlacementInput
from router.placement.placer import Arrivals, Placer
from router.prefixes.narrowing import Hit
from router.quarantine.quarantine import Quarantine, quarantined

CONTENDED_S: Final = 5.0
"""Time after a request had to wait for which fairness between tenants counts, in seconds. Higher holds back tenants
when there is room again; lower lets one tenant fill the room between two waits.
"""
MOST_EXCESS: Final = 1.1
"""Excess of a tenant up to which others pause for its requests while requests wait. Higher lets a tenant push others
aside that uses more than its share; lower has nobody pause for a tenant that uses just its share.
"""
GOLDEN_RATIO: Final = 0.618033988749895
"""Step between the jitters of two refusals. Its multiples spread evenly over [0, 1); most other steps leave gaps."""
NUM_SHOWN: Final = 50
"""Requests of the queue that `queued` shows. Higher costs the Scheduler the pricing of one more request for each; lower
shows less.
"""
LEAST_PER_S: Final = 1e-3
"""Requests per second up to which a class is taken to send none. Higher forgets rare classes; lower prices classes that
send nothing.
"""
MAX_FAILURES: Final = 4
"""Requests of the queue that one `decide` considers without success. Higher costs time while workers are full; lower
leaves requests waiting that would fit behind those that do not.
"""
AGAIN_S: Final = 1.0
"""Time between two looks at a request that has paused for LONGEST_PAUSE_S, in seconds, whatever else waits. Higher
resumes such a request later once a worker takes it; lower costs the Scheduler time while all workers are full.
"""
TOO_MANY: Final = "too many requests wait"
"""Why a request is refused at the door, in words for the client."""

Answer = Placement | Rejection | Exception
"""An exception stands for a defect of the Scheduler that one request has met."""
Decision = tuple[RequestId, Answer]


@final
class AdmissionControl:
    def __init__(
        self,
        slo: SloConfig,
        placer: Placer,
        workers: LiveWorkers,
        quarantine: Quarantine,
        *,
        admits_all: bool,
        preempts: bool = True,
    ) -> None:
        """`admits_all`: no request waits, and no request is refused for being late. `preempts`: running requests pause
        for those of higher classes.
        """
        self._slo = slo
        self._placer = placer
        self._workers = workers
        self._quarantine = quarantine
        self._admits_all = admits_all
        self._queue = self.queue = WaitingQueue()
        self._shares = TenantShares()
        self._preempts = preempts
        self.preemption = Preemption(placer, workers)
        self._arrivals = {slo_class: ArrivalRate() for slo_class in SloClass}
        self._retry_slots = RetrySlots()
        self._contended_at = float("-inf")
        """When a request last had to wait."""
        self._num_refused = 0
        self._failures = RecentFailures()

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def place(
        self, request: PlacementRequest, now: float, ingress: IngressId | None, *, turns_away: bool = False
    ) -> Placement | Rejection | None:
        """Returns None if the request waits, and `decide` gives its answer. `turns_away`: refuse it without a look."""
        self._queue.remove(request.request_id)
        if self._quarantine.holds(request.digest, now):
            return quarantined()
        if request.pinned is not None and self._queue:
            return Rejection(retry_after_s=NO_WORKER_RETRY_S, why="requests of clients wait", is_overload=True)
        waiting = Waiting(request, ingress, now, is_replaced=not self._admits_all and is_replaced(request))
        if not waiting.is_replaced and request.pinned is None:
            self._arrivals[request.slo_class].note(now)
            self._retry_slots.offered(request.slo_class, now)
        if turns_away:
            self._num_refused += 1
            wait = self._retry_slots.take(request.slo_class, 0.0, now)
            seconds = retry_after_s(wait, self._num_refused * GOLDEN_RATIO % 1.0)
            return Rejection(retry_after_s=seconds, why=TOO_MANY, is_overload=True)
        answer = self._consider(waiting, now)
        if answer is None:
            self._queue.add(waiting)
        return answer

    def decide(self, now: float, most: int = MAX_QUEUE) -> list[Decision]:
        """Answers to requests that have waited, in the order of service. Where it gives `most`, more may be due."""
        decisions: list[Decision] = []
        num_failed = 0
        self._queue.wake(now)
        while len(decisions) < most:
            waiting = self._queue.next_due(is_late=num_failed >= MAX_FAILURES)
            if waiting is None:
                break
            is_held = self._quarantine.holds(waiting.request.digest, now)
            answer: Answer | None
            try:
                answer = quarantined() if is_held else self._consider(waiting, now)
            except Exception as error:  # it must not keep the others from their answers
                answer = error
            if answer is None:
                num_failed += 1
                self._queue.look_later(waiting, now)
                continue
            self._queue.remove(waiting.request.request_id)
            decisions.append((waiting.request.request_id, answer))
        return decisions

    def next_decision_at(self) -> float | None:
        """When `decide` has something to do even if no event comes. None if no request waits."""
        return self._queue.next_look_at()

    def withdraw(self, request_id: RequestId) -> None:
        """The request needs no answer. No-op for a request that does not wait."""
        self._queue.remove(request_id)

    def withdraw_of(self, ingress: IngressId, but: frozenset[RequestId]) -> list[RequestId]:
        """The requests of an ingress need no answer, but for some. Returns the requests that waited."""
        return self._queue.remove_of(ingress, but)

    def queued(self, now: float) -> list[QueuedRequest]:
        """The first NUM_SHOWN requests of the queue, in the order of service."""
        shown: list[QueuedRequest] = []
        is_contended = now - self._contended_at < CONTENDED_S
        for number, waiting in enumerate(self._queue.first(NUM_SHOWN)):
            placement_input = self._input_of(waiting, self._placer.hits_of(waiting.request, now), now)
            _, choice = self._placer.find(placement_input, waiting.ingress)
            excess = self._shares.excess(waiting.request.tenant, waiting.request.tenant_weight, now)
            gives_up_at = self._patient_until(waiting) if waiting.request.is_paused else waiting.gives_up_at
            shown.append(
                QueuedRequest(
                    request_id=waiting.request.request_id,
                    slo_class=waiting.request.slo_class,
                    num_before=number,
                    waited_s=now - waiting.asked_at,
                    wait_s=self._wait_s(placement_input, choice, number),
                    gives_up_s=max(0.0, gives_up_at - now),
                    is_paused=waiting.request.is_paused,
                    why=wait_reason(waiting, placement_input, choice, excess, is_contended=is_contended),
                )
            )
        return shown

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        self._queue.validate()
        assert not (self._admits_all and len(self._queue))

    def _consider(self, waiting: Waiting, now: float) -> Placement | Rejection | None:
        """Place or refuse the request. Returns None if the request has to wait."""
        by_pool = self._workers.by_pool(now)
        if not self._admits_all and _is_outage(waiting, by_pool, now):
            return self._outlast(waiting, by_pool, now)
        if waiting.is_outage:
            waiting.begin_anew(now)
        waiting.suspect(self._quarantine.num_lost(waiting.request.digest, now))
        hits = self._placer.hits_of(waiting.request, now)
        excess = self._shares.excess(waiting.request.tenant, waiting.request.tenant_weight, now)
        need = self._need_of(waiting, hits, excess, now) if self._failures.has_fresh(now) else None
        if need is not None and (refused := self._refuse_like_others(waiting, need, now)) is not None:
            return refused
        placement_input = self._input_of(waiting, hits, now)
        leaves_a_place = self._queue.has_overdue and not waiting.is_overdue
        candidates, choice = self._placer.find(placement_input, waiting.ingress, leaves_a_place=leaves_a_place)
        if choice is None:
            answer = no_worker(waiting.request, by_pool)
            return self._wait_for_room(waiting, now) if waiting.is_replaced and answer.is_overload else answer
        admitted = choice if self._admits_all else self._admitted(placement_input, candidates, choice, waiting, excess)
        if admitted is not None:
            if waiting.request.pinned is None:
                self._placer.paths.note(placement_input, candidates, admitted)
            charge = self._placer.commit(placement_input, admitted, waiting.ingress)
            self._shares.charge(charge.tenant, waiting.request.tenant_weight, charge.engine_s, now)
            if not waiting.is_replaced and waiting.request.pinned is None:
                self._retry_slots.admitted(now)
            return charge.placement
        self._contended_at = now
        if waiting.is_replaced:
            return self._wait_for_room(waiting, now)
        need = need or self._need_of(waiting, hits, excess, now)
        waiting.has_to_wait(placement_input.slo.ttft_s, least_prefill_s(placement_input, candidates))
        patience_s = waiting.gives_up_at - now
        if need is not None and choice.prediction is not None and gain(choice.prediction) <= 0.0:
            self._failures.note(Failure(need, placement_input, candidates, choice, patience_s))
        if patience_s <= 0.0:
            return self._refuse(placement_input, candidates, choice, waiting, _why_late(choice), now)
        if not waiting.is_queued and self._is_full(waiting, patience_s, now):
            return self._refuse(placement_input, candidates, choice, waiting, TOO_MANY, now)
        return None

    def _need_of(self, waiting: Waiting, hits: dict[WorkerId, Hit], excess: float, now: float) -> Need | None:
        """None if other requests tell nothing about the request, and it tells nothing about others. `excess`: what its
        tenant uses, as a multiple of the tenant's share.
        """
        request = waiting.request
        if self._admits_all or waiting.is_replaced or request.num_engines_lost or request.path is not None:
            return None
        if self._workers.suspects.of(waiting.ingress, now):
            return None  # its ingress has fewer workers than others
        usual_output, age_s = self._placer.usual_output(request), waiting.age_s + now - waiting.since
        is_late = waiting.is_queued and now >= waiting.gives_up_at
        standing = int(excess > 1.0) + int(excess > MOST_EXCESS)
        return Need(request, hits, usual_output, age_s, standing, is_late=is_late)

    def _refuse_like_others(self, waiting: Waiting, need: Need, now: float) -> Rejection | None:
        """Refuse a request that can wait no longer, or not at all, if a request like it was not admitted just now."""
        failed = self._failures.like(need, now)
        if failed is None:
            return None
        if need.is_late:
            why = _why_late(failed.choice)
        elif not waiting.is_queued and self._is_full(waiting, failed.patience_s, now):
            why = TOO_MANY
        else:
            return None
        self._contended_at = now
        return self._refuse(failed.placement_input, failed.candidates, failed.choice, waiting, why, now)

    def _is_full(self, waiting: Waiting, patience_s: float, now: float) -> bool:
        capacity_per_s = self._retry_slots.capacity_per_s(now)
        return self._queue.is_full(waiting.request.slo_class, patience_s, capacity_per_s)

    def _wait_for_room(self, waiting: Waiting, now: float) -> Rejection | None:
        """The request was admitted before. Returns None if it waits, as long as its class may wait in an outage. It
        needs no room in the queue: as many such requests wait as ran on the workers that failed. A paused request is
        placed after LONGEST_PAUSE_S on any worker that takes it, and considered every AGAIN_S if none does.
        """
        patient_until, is_paused = self._patient_until(waiting), waiting.request.is_paused
        placed_by = waiting.since + LONGEST_PAUSE_S if is_paused else patient_until
        is_overdue = now >= placed_by
        waiting.wait_for_room(min(max(placed_by, now + AGAIN_S), patient_until), is_overdue=is_overdue)
        return None if now < patient_until else no_room_again(is_paused=is_paused)

    def _patient_until(self, waiting: Waiting) -> float:
        """When a request that was admitted before is refused if it still waits."""
        return waiting.since + self._slo.of(waiting.request.slo_class).outage_wait_s

    def _outlast(self, waiting: Waiting, by_pool: WorkersByPool, now: float) -> Rejection | None:
        """No worker lives. Returns None if the request waits for a worker, for as long as its class may."""
        if waiting.request.has_other_cell:
            return no_worker(waiting.request, by_pool)
        has_room = waiting.is_queued or waiting.is_replaced or not self._is_full(waiting, 0.0, now)
        waiting.outlast(waiting.asked_at + self._slo.of(waiting.request.slo_class).outage_wait_s)
        return None if has_room and now < waiting.gives_up_at else no_worker(waiting.request, by_pool)

    def _input_of(self, waiting: Waiting, hits: dict[WorkerId, Hit], now: float) -> PlacementInput:
        arrivals: Arrivals = []
        for slo_class, rate in self._arrivals.items():
            per_s = rate.per_s(now)
            if per_s > LEAST_PER_S:
                arrivals.append((slo_class, per_s))
        return self._placer.input_of(waiting.request, hits, waiting.age_s + now - waiting.since, arrivals, now)

    def _admitted(
        self,
        placement_input: PlacementInput,
        candidates: Candidates,
        choice: Choice,
        waiting: Waiting,
        excess: float,
    ) -> Choice | None:
        """What a request is admitted to: the choice, or a worker that others leave for it. None if it has to wait.
        `excess`: what its tenant uses, as a multiple of the tenant's share.
        """
        request, now, prediction = placement_input.request, placement_input.now, choice.prediction
        is_contended = now - self._contended_at < CONTENDED_S
        verdict = judge(placement_input, choice, excess, is_contended, is_replaced=waiting.is_replaced)
        if request.is_paused and now - waiting.asked_at >= LONGEST_PAUSE_S:
            return choice
        is_fair = excess <= MOST_EXCESS or not is_contended
        if self._preempts and prediction is not None and is_fair and request.path is None and not waiting.is_replaced:
            value = max(0.0, gain(prediction)) if verdict is Verdict.ADMIT else 0.0
            better = self.preemption.choose(placement_input, candidates, value)
            if better is not None:
                return better
        return choice if verdict is Verdict.ADMIT else None

    def _refuse(
        self,
        placement_input: PlacementInput,
        candidates: Candidates,
        choice: Choice,
        waiting: Waiting,
        why: str,
        now: float,
    ) -> Rejection:
        """Refuse a request for the load, and give it a retry slot. The prices may be those of a request like it. A
        request that an idle service could not serve in time takes no slot from those that it could: else any client
        could keep all others away by asking for less.
        """
        self._placer.answered(placement_input)
        num_before = self._queue.num_before(waiting)
        self._num_refused += 1
        expected_s = self._wait_s(placement_input, choice, num_before)
        slo_class, wait = waiting.request.slo_class, expected_s
        if is_hopeless(placement_input, candidates):
            self._retry_slots.withdraw(slo_class, now)
        else:
            wait = self._retry_slots.take(slo_class, expected_s, now)
        seconds = retry_after_s(wait, self._num_refused * GOLDEN_RATIO % 1.0)
        return Rejection(retry_after_s=seconds, why=why, is_overload=True, considered=choice.considered)

    def _wait_s(self, placement_input: PlacementInput, choice: Choice | None, num_before: int) -> float:
        """Time until the request is expected to be admitted, in seconds."""
        generating = (choice.decode or choice.prefill) if choice is not None else None
        if choice is None or choice.prediction is None or generating is None:
            return MOST_RETRY_S
        load = self._shares.seconds_per_s() / max(1, len(self._workers.by_id))
        return wait_s(placement_input, choice.prediction, generating, load, num_before)


def _why_late(choice: Choice) -> str:
    """Why a request is refused that has waited for as long as it could, in words for the client."""
    predicted = choice.prediction
    if predicted is not None and harm(predicted) > predicted.risk:
        return "it would keep other requests from their SLO"
    return "its SLO cannot be met"


def _is_outage(waiting: Waiting, by_pool: WorkersByPool, now: float) -> bool:
    """No worker lives, or the request was lost with each worker that lives. Workers that still report after
    REPORT_TIMEOUT_S have recovered: the request may run on them again.
    """
    if by_pool.is_empty:
        return True
    if not waiting.request.lost:
        return False
    workers = [*by_pool.prefills, *by_pool.decodes, *by_pool.draining_prefills, *by_pool.draining_decodes]
    if not waiting.request.excluded.issuperset([worker.worker for worker in workers]):
        return False
    if now - waiting.asked_at <= REPORT_TIMEOUT_S:
        return True
    waiting.forgive()
    return False
