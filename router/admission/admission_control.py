"""AdmissionControl: decides for each request whether it is placed now, waits in the queue, or is refused.

`place` answers a new request or adds it to the queue. `decide` answers requests in the queue: it is called after every
event, and at `next_decision_at`, since queues drain without an event.
"""

from itertools import islice
from typing import Final, final

from cluster.messages.ids import IngressId, RequestId, SloClass
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.views import QueuedRequest
from cluster.slo import SloConfig
from router.admission.arrivals import ArrivalRate
from router.admission.fairness import TenantShares
from router.admission.retry_after import MOST_RETRY_S, RetrySlots, retry_after_s, wait_s
from router.admission.verdict import MAX_QUEUE, Verdict, harm, judge
from router.admission.waiting_queue import Waiting, WaitingQueue
from router.load.live_workers import REPORT_TIMEOUT_S, LiveWorkers, WorkersByPool
from router.placement.candidates import Candidates, Choice
from router.placement.goodput import is_hopeless, least_prefill_s
from router.placement.no_candidates import no_worker
from router.placement.placement_input import PlacementInput
from router.placement.placer import Arrivals, Placer
from router.quarantine.quarantine import Quarantine, quarantined

CONTENDED_S: Final = 5.0
"""Time after a request had to wait for which fairness between tenants counts, in seconds. Higher holds back tenants
when there is room again; lower lets one tenant fill the room between two waits.
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

Decision = tuple[RequestId, Placement | Rejection]


@final
class AdmissionControl:
    def __init__(
        self, slo: SloConfig, placer: Placer, workers: LiveWorkers, quarantine: Quarantine, *, admits_all: bool
    ) -> None:
        """`admits_all`: no request waits, and no request is refused for being late."""
        self._slo = slo
        self._placer = placer
        self._workers = workers
        self._quarantine = quarantine
        self._admits_all = admits_all
        self._queue = WaitingQueue()
        self._shares = TenantShares()
        self._arrivals = {slo_class: ArrivalRate() for slo_class in SloClass}
        self._retry_slots = RetrySlots()
        self._contended_at = float("-inf")
        """When a request last had to wait."""
        self._num_refused = 0

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def place(self, request: PlacementRequest, now: float, ingress: IngressId | None) -> Placement | Rejection | None:
        """Returns None if the request waits, and `decide` gives its answer."""
        self._queue.remove(request.request_id)
        if self._quarantine.holds(request.digest, now):
            return quarantined()
        waiting = Waiting(request, ingress, now)
        self._arrivals[request.slo_class].note(now)
        self._retry_slots.offered(request.slo_class, now)
        answer = self._consider(waiting, now)
        if answer is None:
            self._queue.add(waiting)
        return answer

    def decide(self, now: float) -> list[Decision]:
        """Answers to requests that have waited, in the order of service."""
        decisions: list[Decision] = []
        num_failed = 0
        for waiting in self._queue.in_order():
            if now < waiting.gives_up_at and (num_failed >= MAX_FAILURES or now < waiting.try_at):
                continue
            is_held = self._quarantine.holds(waiting.request.digest, now)
            answer = quarantined() if is_held else self._consider(waiting, now)
            if answer is None:
                num_failed += 1
                waiting.look_later(now)
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
        for number, waiting in enumerate(islice(self._queue.in_order(), NUM_SHOWN)):
            placement_input = self._input_of(waiting, now)
            choice = self._placer.choose(placement_input, self._placer.candidates_for(placement_input, waiting.ingress))
            shown.append(
                QueuedRequest(
                    request_id=waiting.request.request_id,
                    slo_class=waiting.request.slo_class,
                    num_before=number,
                    waited_s=now - waiting.asked_at,
                    wait_s=self._wait_s(placement_input, choice, number),
                    gives_up_s=max(0.0, waiting.gives_up_at - now),
                )
            )
        return shown

    def validate(self) -> None:
        """Assert every invariant. Tests call it after each event."""
        self._queue.validate()
        assert len(self._queue) <= MAX_QUEUE
        assert not (self._admits_all and len(self._queue))

    def _consider(self, waiting: Waiting, now: float) -> Placement | Rejection | None:
        """Place or refuse the request. Returns None if the request has to wait."""
        by_pool = self._workers.by_pool(now)
        if not self._admits_all and _is_outage(waiting, by_pool, now):
            return self._outlast(waiting, by_pool, now)
        if waiting.is_outage:
            waiting.begin_anew(now)
        waiting.suspect(self._quarantine.num_lost(waiting.request.digest, now))
        placement_input = self._input_of(waiting, now)
        candidates = self._placer.candidates_for(placement_input, waiting.ingress)
        choice = self._placer.choose(placement_input, candidates)
        if choice is None:
            return no_worker(waiting.request, by_pool)
        if self._admits_all or self._admits(placement_input, choice):
            charge = self._placer.commit(placement_input, choice, waiting.ingress)
            self._shares.charge(charge.tenant, charge.engine_s, now)
            self._retry_slots.admitted(now)
            return charge.placement
        self._contended_at = now
        waiting.has_to_wait(placement_input.slo.ttft_s, least_prefill_s(placement_input, candidates))
        if now >= waiting.gives_up_at:
            return self._refuse(placement_input, candidates, choice, waiting, _why_late(choice))
        if len(self._queue) >= MAX_QUEUE:
            return self._refuse(placement_input, candidates, choice, waiting, "too many requests wait")
        return None

    def _outlast(self, waiting: Waiting, by_pool: WorkersByPool, now: float) -> Rejection | None:
        """No worker lives. Returns None if the request waits for a worker, for as long as its class may."""
        has_room = waiting.is_outage or len(self._queue) < MAX_QUEUE
        waiting.outlast(waiting.asked_at + self._slo.of(waiting.request.slo_class).outage_wait_s)
        return None if has_room and now < waiting.gives_up_at else no_worker(waiting.request, by_pool)

    def _input_of(self, waiting: Waiting, now: float) -> PlacementInput:
        arrivals: Arrivals = []
        for slo_class, rate in self._arrivals.items():
            per_s = rate.per_s(now)
            if per_s > LEAST_PER_S:
                arrivals.append((slo_class, per_s))
        return self._placer.input_of(waiting.request, waiting.age_s + now - waiting.since, arrivals, now)

    def _admits(self, placement_input: PlacementInput, choice: Choice) -> bool:
        now = placement_input.now
        excess = self._shares.excess(placement_input.request.tenant, now)
        is_contended = now - self._contended_at < CONTENDED_S
        return judge(placement_input, choice, excess, is_contended) is Verdict.ADMIT

    def _refuse(
        self, placement_input: PlacementInput, candidates: Candidates, choice: Choice, waiting: Waiting, why: str
    ) -> Rejection:
        """Refuse a request for the load, and give it a retry slot. A request that an idle service could not serve in
        time takes no slot from those that it could: else any client could keep all others away by asking for less.
        """
        now = placement_input.now
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
    workers = [*by_pool.prefills, *by_pool.decodes]
    if not waiting.request.excluded.issuperset([worker.worker for worker in workers]):
        return False
    if now - waiting.asked_at <= REPORT_TIMEOUT_S:
        return True
    waiting.forgive()
    return False
