"""The open requests that are charged to workers, from the placement to the end of each.

A charge ends when its request is closed, when its ingress says that the request is not open or is gone (`keep_open`),
or when the worker that should run it says that it does not (`compare`). Each of these is enough: no single lost message
keeps a worker's room.
"""

from collections.abc import Iterator
from typing import Final, final

from cluster.messages.ids import IngressId, Path, RequestId, WorkerId
from cluster.messages.reports import WorkerReport
from router.load.charge import Charge, Stage
from router.load.worker_state import WorkerState

SETTLED_S: Final = 5.0
"""How long a request may take from a stage that the Scheduler knows of to the engine that runs it, in seconds: a new
connection and the redemption of a lease lie between. Shorter drops charges of requests that are on their way, longer
keeps charges of requests that are over.
"""
NUM_SHORT: Final = 4
"""Reports in a row that count fewer requests than the worker must have, before it is asked which it has. Fewer ask a
worker whose requests are between two attempts, more find a lost charge later: a second later at four reports a second.
"""


@final
class Charges:
    __slots__ = ("_by_id", "_by_ingress", "_workers")

    def __init__(self, workers: dict[WorkerId, WorkerState]) -> None:
        """`workers`: those that live, kept by their owner."""
        self._workers = workers
        self._by_id: dict[RequestId, Charge] = {}
        self._by_ingress: dict[IngressId, dict[RequestId, Charge]] = {}

    def __iter__(self) -> Iterator[Charge]:
        return iter(self._by_id.values())

    def find(self, request_id: RequestId) -> Charge | None:
        return self._by_id.get(request_id)

    def add(self, made: Charge) -> None:
        self._by_id[made.request_id] = made
        if made.ingress is not None:
            self._by_ingress.setdefault(made.ingress, {})[made.request_id] = made

    def prefilled(self, request_id: RequestId, now: float) -> None:
        """Path P->D: the prompt is computed. No-op for a request that is not there or further."""
        made = self._by_id.get(request_id)
        if made is None or made.stage is not Stage.PREFILLING or made.placement.path is not Path.PREFILL_DECODE:
            return
        made.stage, made.staged_at = Stage.HANDED_OVER, now
        if prefill := self._state_of(made.placement.prefill):
            prefill.prefilled(request_id, now)

    def has_first_token(self, request_id: RequestId, now: float) -> None:
        """The generating worker decodes. No-op for a request that is not there or decodes already."""
        made = self._by_id.get(request_id)
        if made is None or made.stage is Stage.DECODING:
            return
        made.stage, made.staged_at = Stage.DECODING, now
        placed = made.placement
        if prefill := self._state_of(placed.prefill):
            prefill.prefilled(request_id, now)
            if placed.path is Path.PREFILL_DECODE:
                prefill.release(made, now)
        if generating := self._state_of(placed.generating):
            generating.prefilled(request_id, now)
            generating.join(made, now)

    def release(self, request_id: RequestId, now: float) -> None:
        """The request is over. No-op where it is not charged."""
        made = self._by_id.pop(request_id, None)
        if made is None:
            return
        if made.ingress is not None:
            of_ingress = self._by_ingress[made.ingress]
            del of_ingress[request_id]
            if not of_ingress:
                del self._by_ingress[made.ingress]
        for worker in (made.placement.prefill, made.placement.decode):
            if state := self._state_of(worker):
                state.release(made, now)

    def keep_open(self, ingress: IngressId, open_requests: frozenset[RequestId], now: float) -> None:
        """Release what is charged to an ingress and is not among its open requests."""
        for request_id in [r for r in self._by_ingress.get(ingress, ()) if r not in open_requests]:
            self.release(request_id, now)

    def compare(self, state: WorkerState, report: WorkerReport, now: float) -> None:
        """Hold a worker's report against what is charged to the worker.

        1. A worker that counts fewer requests than it must have, NUM_SHORT times in a row, is asked which it has
           (`state.asked_at`): the reply to its report says so until a report names them.
        2. A report that names them was made after the question. So what was due on the worker SETTLED_S before the
           question, and is not named, is not there: its charge is released.
        """
        if report.requests is not None and state.asked_at is not None:
            present = {base for request_id in report.requests for base in _bases(request_id)}
            for made in self._due(state, state.asked_at - SETTLED_S):
                if made.request_id not in present:
                    self.release(made.request_id, now)
            state.asked_at, state.num_short = None, 0
            return
        counted = report.load.num_open
        if counted is None or counted >= len(state.charges) or counted >= len(self._due(state, now - SETTLED_S)):
            state.num_short = 0
            return
        state.num_short += 1
        if state.num_short >= NUM_SHORT and state.asked_at is None:
            state.asked_at = now

    def resume(self, state: WorkerState, now: float) -> None:
        """A worker that was lost reports again: it still has these requests."""
        for made in self._by_id.values():
            if state.worker in (made.placement.prefill, made.placement.decode):
                state.resume(made, now)

    def validate(self) -> None:
        """Assert every invariant."""
        for state in self._workers.values():
            for request_id, made in state.charges.items():
                assert self._by_id[request_id] is made
        for ingress, of_ingress in self._by_ingress.items():
            assert of_ingress
            for request_id, made in of_ingress.items():
                assert self._by_id[request_id] is made
                assert made.ingress == ingress
        for made in self._by_id.values():
            placed = made.placement
            assert made.ingress is None or made.request_id in self._by_ingress[made.ingress]
            assert (placed.prefill is None) == (placed.path is Path.DECODE)
            assert (placed.decode is None) == (placed.path is Path.PREFILL)

    def _due(self, state: WorkerState, since: float) -> list[Charge]:
        """What a worker must have: requests that came to their stage there before `since`."""
        return [made for made in state.charges.values() if made.staged_at < since and made.runs_on == state.worker]

    def _state_of(self, worker: WorkerId | None) -> WorkerState | None:
        return self._workers.get(worker) if worker is not None else None


def _bases(request_id: RequestId) -> list[RequestId]:
    """The request ids that a worker's id can belong to: an attempt has the id of its request and a suffix after a
    dash. Ids may have dashes themselves, so all that it can be are given: one too many keeps a charge, no more.
    """
    parts = request_id.split("-")
    return [RequestId("-".join(parts[:number])) for number in range(1, len(parts) + 1)]
