"""The requests that wait for a placement, in the order of service: by SLO class, then by deadline."""

from typing import Final, final

import msgspec

from cluster.messages.ids import IngressId, RequestId
from cluster.messages.placement import PlacementRequest

LOOK_SHARE: Final = 0.05
"""Share of the time that a request has left, after which the request is considered again. Higher finds room later;
lower costs the Scheduler more placements.
"""
LEAST_LOOK_S, MOST_LOOK_S = 0.02, 0.1
"""Bounds of that time, in seconds. Higher finds room later; lower costs the Scheduler more placements."""


@final
class Waiting:
    """One request that waits for a placement."""

    __slots__ = ("age_s", "asked_at", "gives_up_at", "ingress", "is_outage", "request", "since", "try_at")

    def __init__(self, request: PlacementRequest, ingress: IngressId | None, now: float) -> None:
        self.request = request
        self.ingress = ingress
        self.asked_at = now
        """When the ingress asked for the placement."""
        self.since = now
        """From when the TTFT counts for admission: `asked_at`, or the end of an outage."""
        self.age_s = 0.0 if request.is_paused else request.age_s
        """Age of the request at `since`, in seconds."""
        self.is_outage = False
        """The request waits because no worker lives."""
        self.gives_up_at = now
        """When the objective of the request can no longer be met. Known once the request has been considered."""
        self.try_at = now
        """When the request is to be considered again."""

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
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[RequestId, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting.request.request_id] = waiting

    def remove(self, request_id: RequestId) -> None:
        self._waiting.pop(request_id, None)

    def remove_of(self, ingress: IngressId, but: frozenset[RequestId]) -> list[RequestId]:
        """Remove the requests of an ingress, but for some. Returns the requests that were removed."""
        removed = [r for r, waiting in self._waiting.items() if waiting.ingress == ingress and r not in but]
        for request_id in removed:
            del self._waiting[request_id]
        return removed

    def in_order(self) -> list[Waiting]:
        return sorted(self._waiting.values(), key=_place)

    def next_look_at(self) -> float | None:
        """When the first request is to be considered again, or has reached its deadline. None if no request waits."""
        looks = (min(waiting.try_at, waiting.gives_up_at) for waiting in self._waiting.values())
        return min(looks, default=None)

    def num_before(self, waiting: Waiting) -> int:
        """Requests of the queue that are served before a request that is not in the queue."""
        place = _place(waiting)
        return sum(_place(other) < place for other in self._waiting.values())

    def validate(self) -> None:
        """Assert every invariant."""
        for request_id, waiting in self._waiting.items():
            assert waiting.request.request_id == request_id
            assert waiting.asked_at <= waiting.since


def _place(waiting: Waiting) -> tuple[int, float]:
    """The place in the order of service. The least comes first."""
    return waiting.request.slo_class.rank, waiting.gives_up_at
