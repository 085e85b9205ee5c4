"""The requests that wait for a placement, in the order of service: by SLO class, and then by deadline. In each class,
requests that were admitted before come first.

A request is *asleep* until its next look, and *awake* from then on until it has been considered. It is *late* once its
deadline has passed. To add, remove or find a request does not pass over the queue.
"""

from itertools import islice
from typing import Final, final

import msgspec

from cluster.messages.ids import IngressId, RequestId, SloClass
from cluster.messages.placement import PlacementRequest
from router.admission.sorted_keys import Key, SortedKeys

LOOK_SHARE: Final = 0.05
"""Share of the time that a request has left, after which the request is considered again. Higher finds room later;
lower costs the Scheduler more placements.
"""
LEAST_LOOK_S, MOST_LOOK_S = 0.02, 0.1
"""Bounds of that time, in seconds. Higher finds room later; lower costs the Scheduler more placements."""
MAX_QUEUE: Final = 2000
"""Requests of a class and of higher classes that may wait at a time, where the service admits few. Higher keeps
requests that get no turn, and their block hashes in memory; lower refuses requests of a burst that would have been
placed.
"""
MOST_QUEUE: Final = 20_000
"""The same where the service admits so many while a request waits. Higher costs memory (some 100 kB for a prompt of 32k
tokens); lower refuses requests of a burst that would have been placed.
"""


@final
class Waiting:
    """One request that waits for a placement."""

    __slots__ = (
        "age_s",
        "asked_at",
        "gives_up_at",
        "ingress",
        "is_awake",
        "is_late",
        "is_outage",
        "is_overdue",
        "is_queued",
        "is_replaced",
        "keyed_gives_up_at",
        "keyed_try_at",
        "number",
        "request",
        "since",
        "try_at",
    )

    def __init__(
        self, request: PlacementRequest, ingress: IngressId | None, now: float, *, is_replaced: bool = False
    ) -> None:
        """`is_replaced`: the request was admitted before, and its worker failed or the request paused."""
        self.request = request
        self.is_replaced = is_replaced
        self.ingress = ingress
        self.asked_at = now
        """When the ingress asked for the placement."""
        self.since = now
        """From when the TTFT counts for admission: `asked_at`, or the end of an outage."""
        self.age_s = 0.0 if request.is_paused else request.age_s
        """Age of the request at `since`, in seconds."""
        self.is_outage = False
        """The request waits because no worker lives."""
        self.is_overdue = False
        """The request was admitted before, and has been away from a worker for as long as it may."""
        self.gives_up_at = now
        """When the request is considered whatever else waits. Most requests are refused if they are not admitted then:
        their objective can no longer be met, or their patience ends. Known once the request has been considered.
        """
        self.try_at = now
        """When the request is to be considered again."""
        self.is_queued = False
        """The request has been added to the queue."""
        self.number = 0
        """The place among the requests that were ever added to the queue: the first comes first among equals."""
        self.is_awake = False
        """The queue has found that the request is due."""
        self.is_late = False
        """The queue has found that the deadline has passed."""
        self.keyed_gives_up_at = self.keyed_try_at = now
        """What the queue has sorted the request by."""

    def outlast(self, until: float) -> None:
        """No worker lives: the request waits for one."""
        self.is_outage = True
        self.gives_up_at = until

    def begin_anew(self, now: float) -> None:
        """An outage is over. For admission the request arrives now, as all requests do that have outlasted the outage:
        otherwise all of them would be refused for being late.
        """
        self.is_outage = False
        self.since, self.age_s = now, 0.0

    def has_to_wait(self, ttft_s: float, least_prefill_s: float) -> None:
        """The request was considered, and not admitted. `least_prefill_s`: the shortest time that its prompt takes."""
        self.gives_up_at = self.since + ttft_s - self.age_s - least_prefill_s

    def wait_for_room(self, until: float, *, is_overdue: bool) -> None:
        """The request was admitted before. It was considered, and not placed."""
        self.gives_up_at, self.is_overdue = until, is_overdue

    def suspect(self, num_engines_lost: int) -> None:
        """This number of engines was lost with requests of the same digest."""
        if num_engines_lost > self.request.num_engines_lost:
            self.request = msgspec.structs.replace(self.request, num_engines_lost=num_engines_lost)

    def forgive(self) -> None:
        """The workers that the request was lost with have recovered."""
        self.request = msgspec.structs.replace(self.request, excluded=frozenset(), lost=frozenset())

    def look_later(self, now: float) -> None:
        """The request was not admitted: consider it again after a small part of the time that it has left."""
        self.try_at = now + min(max(LOOK_SHARE * (self.gives_up_at - now), LEAST_LOOK_S), MOST_LOOK_S)


@final
class WaitingQueue:
    __slots__ = (
        "_asleep",
        "_awake",
        "_by_ingress",
        "_by_number",
        "_by_request",
        "_deadlines",
        "_late",
        "_next",
        "_num_new",
        "_order",
        "_overdue",
        "_woken_at",
    )

    def __init__(self) -> None:
        self._by_request: dict[RequestId, Waiting] = {}
        self._by_number: dict[int, Waiting] = {}
        self._by_ingress: dict[IngressId | None, dict[RequestId, Waiting]] = {}
        self._num_new = [0 for _ in SloClass]
        """Requests of each class that were not admitted before, by rank."""
        self._overdue = set[RequestId]()
        """Requests for which new ones leave a place."""
        self._next = 0
        """Number of the next request that is added."""
        self._order = SortedKeys()
        """All requests, by their place in the order of service."""
        self._awake = SortedKeys()
        """Requests that are awake, by their place."""
        self._late = SortedKeys()
        """Requests that are late, by their place."""
        self._asleep = SortedKeys()
        """Requests that are asleep, by their next look."""
        self._deadlines = SortedKeys()
        """Requests that are not late, by their deadline."""
        self._woken_at = 0.0
        """Time of the latest `wake`."""

    def __len__(self) -> int:
        return len(self._by_request)

    def num_by_class(self) -> dict[SloClass, int]:
        """Requests of each class, those included that were admitted before. Passes over the queue, for metrics."""
        numbers = dict.fromkeys(SloClass, 0)
        for waiting in self._by_request.values():
            numbers[waiting.request.slo_class] += 1
        return numbers

    @property
    def has_overdue(self) -> bool:
        """Whether requests wait that have been away from a worker for as long as they may."""
        return bool(self._overdue)

    def add(self, waiting: Waiting) -> None:
        """Add a request. A request of the same id that waits already gives way."""
        self.remove(waiting.request.request_id)
        waiting.is_queued, waiting.number, self._next = True, self._next, self._next + 1
        request_id = waiting.request.request_id
        self._by_request[request_id] = self._by_number[waiting.number] = waiting
        self._by_ingress.setdefault(waiting.ingress, {})[request_id] = waiting
        self._count(waiting, 1)
        self._sort_in(waiting)

    def remove(self, request_id: RequestId) -> None:
        """No-op for a request that does not wait."""
        waiting = self._by_request.pop(request_id, None)
        if waiting is None:
            return
        self._count(waiting, -1)
        del self._by_number[waiting.number]
        of_ingress = self._by_ingress[waiting.ingress]
        del of_ingress[request_id]
        if not of_ingress:
            del self._by_ingress[waiting.ingress]
        self._sort_out(waiting)
        self._overdue.discard(request_id)

    def remove_of(self, ingress: IngressId, but: frozenset[RequestId]) -> list[RequestId]:
        """Remove the requests of an ingress, but for some. Returns the requests that were removed."""
        removed = [request_id for request_id in self._by_ingress.get(ingress, ()) if request_id not in but]
        for request_id in removed:
            self.remove(request_id)
        return removed

    def first(self, number: int) -> list[Waiting]:
        """The first requests in the order of service."""
        return [self._by_number[key[2]] for key in islice(self._order, number)]

    def wake(self, now: float) -> None:
        """Find the requests that are due now, and those that are late."""
        self._woken_at = now
        while (key := self._asleep.first()) is not None and key[1] <= now:
            self._asleep.remove(key)
            waiting = self._by_number[key[2]]
            waiting.is_awake = True
            self._awake.add(_place(waiting))
        while (key := self._deadlines.first()) is not None and key[1] <= now:
            self._deadlines.remove(key)
            waiting = self._by_number[key[2]]
            waiting.is_late = True
            self._late.add(_place(waiting))

    def next_due(self, *, is_late: bool) -> Waiting | None:
        """The first request in the order of service that is awake or late. `is_late`: the first one that is late. The
        caller removes it, or calls `look_later`.
        """
        late, awake = self._late.first(), None if is_late else self._awake.first()
        key = late if awake is None or (late is not None and late < awake) else awake
        return None if key is None else self._by_number[key[2]]

    def look_later(self, waiting: Waiting, now: float) -> None:
        """A request of the queue was considered, and not admitted. It is asleep until its next look."""
        self._sort_out(waiting)
        waiting.look_later(now)
        self._sort_in(waiting)
        if waiting.is_overdue:
            self._overdue.add(waiting.request.request_id)

    def next_look_at(self) -> float | None:
        """When the first request is to be considered again, or has reached its deadline: a time that has passed if
        requests are due already. None if no request waits.
        """
        if len(self._awake) or len(self._late):
            return self._woken_at
        look, deadline = self._asleep.first(), self._deadlines.first()
        if look is None or deadline is None:
            return None
        return min(look[1], deadline[1])

    def is_full(self, slo_class: SloClass, patience_s: float, admitted_per_s: float) -> bool:
        """Whether a request of a class is refused rather than to wait for `patience_s`. The bound is the number of
        requests that can be admitted before, within MAX_QUEUE and MOST_QUEUE. Lower classes do not count, so that they
        keep no higher one out. Neither do requests that were admitted before: as many of them wait as ran on workers
        that failed.
        """
        bound = min(max(admitted_per_s * patience_s, MAX_QUEUE), MOST_QUEUE)
        return sum(self._num_new[: slo_class.rank + 1]) >= bound

    def num_before(self, waiting: Waiting) -> int:
        """Other requests of the queue that are served before a request, by its deadline as it is now."""
        place = (_line(waiting), waiting.gives_up_at, -1)
        counts_itself = self._by_number.get(waiting.number) is waiting and _place(waiting) < place
        return self._order.num_before(place) - counts_itself

    def validate(self) -> None:
        """Assert every invariant."""
        for keys in (self._order, self._awake, self._late, self._asleep, self._deadlines):
            keys.validate()
        several = self._by_request.values()
        for request_id, waiting in self._by_request.items():
            assert waiting.request.request_id == request_id
            assert waiting.asked_at <= waiting.since
            assert self._by_number[waiting.number] is waiting
            assert self._by_ingress[waiting.ingress][request_id] is waiting
        assert len(self._by_number) == len(several)
        for slo_class in SloClass:
            num_new = sum(one.request.slo_class is slo_class and not one.is_replaced for one in several)
            assert self._num_new[slo_class.rank] == num_new <= MOST_QUEUE
        assert sum(map(len, self._by_ingress.values())) == len(several)
        assert all(self._by_ingress.values())
        assert self._overdue == {waiting.request.request_id for waiting in several if waiting.is_overdue}
        assert list(self._order) == sorted(_place(waiting) for waiting in several)
        assert list(self._awake) == sorted(_place(waiting) for waiting in several if waiting.is_awake)
        assert list(self._late) == sorted(_place(waiting) for waiting in several if waiting.is_late)
        assert len(self._awake) + len(self._asleep) == len(self._late) + len(self._deadlines) == len(several)

    def _count(self, waiting: Waiting, change: int) -> None:
        if not waiting.is_replaced:
            self._num_new[waiting.request.slo_class.rank] += change

    def _sort_in(self, waiting: Waiting) -> None:
        waiting.keyed_gives_up_at, waiting.keyed_try_at = waiting.gives_up_at, waiting.try_at
        waiting.is_awake = waiting.is_late = False
        self._order.add(_place(waiting))
        self._asleep.add(_look(waiting))
        self._deadlines.add(_deadline(waiting))

    def _sort_out(self, waiting: Waiting) -> None:
        place = _place(waiting)
        self._order.remove(place)
        if waiting.is_awake:
            self._awake.remove(place)
        else:
            self._asleep.remove(_look(waiting))
        if waiting.is_late:
            self._late.remove(place)
        else:
            self._deadlines.remove(_deadline(waiting))


def _place(waiting: Waiting) -> Key:
    """The place of a request of the queue in the order of service. The least comes first."""
    return _line(waiting), waiting.keyed_gives_up_at, waiting.number


def _line(waiting: Waiting) -> int:
    """Requests of one line are served by their deadline; lines one after another."""
    return 2 * waiting.request.slo_class.rank + (0 if waiting.is_replaced else 1)


def _look(waiting: Waiting) -> Key:
    return 0, waiting.keyed_try_at, waiting.number


def _deadline(waiting: Waiting) -> Key:
    return 0, waiting.keyed_gives_up_at, waiting.number
