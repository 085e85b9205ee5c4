"""The open requests that are charged to workers, from the placement to the end of each.

A charge ends when its request is closed, when its ingress reports that the request is not open or when that ingress is
gone (`keep_open`), or when the worker that should run the request reports that it does not (`compare`). Each of these
is enough: no single lost message keeps a worker's room.
"""

from collections.abc import Iterator
from typing import Final, final

from cluster.messages.ids import IngressId, Path, RequestId, WorkerId
from cluster.messages.reports import WorkerReport
from router.load.charge import Charge, Stage
from router.load.prompt_demand import Demand, PromptDemand
from router.load.worker_state import WorkerState

SETTLED_S: Final = 5.0
"""Time that a request may take from a stage that the Scheduler knows to the engine that runs it, in seconds: a new
connection and the redemption of a lease lie between. Lower drops charges of requests that are on their way; higher
keeps charges of requests that are over.
"""


@final
class Charges:
    __slots__ = ("_by_id", "_by_ingress", "_by_worker", "_demand", "_workers")

    def __init__(self, workers: dict[WorkerId, WorkerState]) -> None:
        """`workers`: the workers that are known, by id. LiveWorkers adds and removes them."""
        self._workers = workers
        self._by_id: dict[RequestId, Charge] = {}
        self._by_ingress: dict[IngressId, dict[RequestId, Charge]] = {}
        self._by_worker: dict[WorkerId, dict[RequestId, Charge]] = {}
        """The charges that name a worker in their placement, also while the worker is not known."""
        self._demand = PromptDemand()

    def __iter__(self) -> Iterator[Charge]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, request_id: RequestId) -> Charge | None:
        return self._by_id.get(request_id)

    def prompt_demand(self, now: float) -> Demand:
        """Prompts that were placed lately, by how soon they are due. Those that left before they were computed do not
        count.
        """
        return self._demand.at(now, max(1, len(self._workers)))

    def usual_prompt_s(self, now: float) -> float:
        """Seconds that the prompt takes which workers compute at a random moment. 0 without prompts lately."""
        return self._demand.usual_s(now)

    def add(self, charge: Charge, now: float) -> None:
        self._demand.note(charge.slo_ttft_s, charge.prefill_s, now)
        self._by_id[charge.request_id] = charge
        if charge.ingress is not None:
            self._by_ingress.setdefault(charge.ingress, {})[charge.request_id] = charge
        for worker in _workers_of(charge):
            self._by_worker.setdefault(worker, {})[charge.request_id] = charge

    def prefilled(self, request_id: RequestId, now: float) -> None:
        """Path P->D: the prompt is computed. No-op for a request that is not charged or has come further."""
        charge = self._by_id.get(request_id)
        if charge is None or charge.stage is not Stage.PREFILLING or charge.placement.path is not Path.PREFILL_DECODE:
            return
        charge.stage, charge.staged_at = Stage.HANDED_OVER, now
        if prefill := self._state_of(charge.placement.prefill):
            prefill.prefilled(request_id, now)

    def has_first_token(self, request_id: RequestId, now: float) -> None:
        """The generating worker decodes. No-op for a request that is not charged or decodes already."""
        charge = self._by_id.get(request_id)
        if charge is None or charge.stage is Stage.DECODING:
            return
        charge.stage, charge.staged_at = Stage.DECODING, now
        placed = charge.placement
        if prefill := self._state_of(placed.prefill):
            prefill.prefilled(request_id, now)
            if placed.path is Path.PREFILL_DECODE:
                prefill.release(charge, now)
        if generating := self._state_of(placed.generating):
            generating.prefilled(request_id, now)
            generating.join(charge, now)

    def release(self, request_id: RequestId, now: float) -> None:
        """The request is over. No-op for a request that is not charged."""
        charge = self._by_id.pop(request_id, None)
        if charge is None:
            return
        if charge.ingress is not None:
            of_ingress = self._by_ingress[charge.ingress]
            del of_ingress[request_id]
            if not of_ingress:
                del self._by_ingress[charge.ingress]
        for worker in _workers_of(charge):
            of_worker = self._by_worker[worker]
            del of_worker[request_id]
            if not of_worker:
                del self._by_worker[worker]
            if state := self._state_of(worker):
                if uncomputed_s := state.prompts.uncomputed_s(request_id, now):
                    self._demand.take_back(charge.slo_ttft_s, uncomputed_s, charge.placed_at, now)
                state.release(charge, now)

    def keep_open(self, ingress: IngressId, open_requests: frozenset[RequestId], now: float) -> None:
        """Release the requests of an ingress that are not among its open requests."""
        for request_id in [r for r in self._by_ingress.get(ingress, ()) if r not in open_requests]:
            self.release(request_id, now)

    def compare(self, state: WorkerState, report: WorkerReport, now: float) -> None:
        """Hold a worker's report against what is charged to the worker.

        1. A worker that counts fewer requests than it must have, several times in a row, is asked which requests it has
           (`state.audit`). Replies to its reports ask until a report names the requests.
        2. A report that names the requests was made after the question. So a request that was due on the worker
           SETTLED_S before the question, and is not named, is not there: its charge is released.
        """
        audit = state.audit
        if report.requests is not None and audit.asked_at is not None:
            present = {base for request_id in report.requests for base in _bases(request_id)}
            for charge in self._due(state, audit.asked_at - SETTLED_S):
                if charge.request_id not in present:
                    self.release(charge.request_id, now)
            audit.answered()
            return
        counted = report.load.num_open
        if counted is None or counted >= len(state.charges) or counted >= len(self._due(state, now - SETTLED_S)):
            audit.count_is_right()
        else:
            audit.count_is_short(now)

    def resume(self, state: WorkerState, now: float) -> None:
        """A worker that was lost reports again: it still has these requests."""
        for charge in self._by_worker.get(state.worker, {}).values():
            state.resume(charge, now)

    def validate(self) -> None:
        """Assert every invariant."""
        for state in self._workers.values():
            for request_id, charge in state.charges.items():
                assert self._by_id[request_id] is charge
        for ingress, of_ingress in self._by_ingress.items():
            assert of_ingress
            for request_id, charge in of_ingress.items():
                assert self._by_id[request_id] is charge
                assert charge.ingress == ingress
        for worker, of_worker in self._by_worker.items():
            assert of_worker
            for request_id, charge in of_worker.items():
                assert self._by_id[request_id] is charge
                assert worker in _workers_of(charge)
        for charge in self._by_id.values():
            placed = charge.placement
            assert all(charge.request_id in self._by_worker[worker] for worker in _workers_of(charge))
            assert charge.ingress is None or charge.request_id in self._by_ingress[charge.ingress]
            assert (placed.prefill is None) == (placed.path is Path.DECODE)
            assert (placed.decode is None) == (placed.path is Path.PREFILL)

    def _due(self, state: WorkerState, since: float) -> list[Charge]:
        """Requests that a worker must have, since they came to their stage there before `since`."""
        return [
            charge for charge in state.charges.values() if charge.staged_at < since and charge.runs_on == state.worker
        ]

    def _state_of(self, worker: WorkerId | None) -> WorkerState | None:
        return self._workers.get(worker) if worker is not None else None


def _workers_of(charge: Charge) -> list[WorkerId]:
    """The workers that a request was placed on."""
    placed = charge.placement
    return [worker for worker in (placed.prefill, placed.decode) if worker is not None]


def _bases(request_id: RequestId) -> list[RequestId]:
    """The request ids that a worker's id can belong to: an attempt has the id of its request, a dash and a suffix. A
    request id may have dashes itself, so every prefix counts. An id too many keeps a charge, and does no other harm.
    """
    parts = request_id.split("-")
    return [RequestId("-".join(parts[:number])) for number in range(1, len(parts) + 1)]
