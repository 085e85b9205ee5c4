"""Who waits for a placement, and in what order they are served: by SLO class, then by deadline."""

from typing import Final, final

import msgspec

from cluster.messages.ids import IngressId, RequestId
from cluster.messages.placement import PlacementRequest
from router.admission.admission import band

LOOK_SHARE: Final = 0.05
LEAST_LOOK_S, MOST_LOOK_S = 0.02, 0.1


@final
class Waiting:
    """One request that waits."""

    __slots__ = ("age_s", "asked_at", "gives_up_at", "ingress", "is_outage", "request", "since", "try_at", "ttft_s")

    def __init__(self, request: PlacementRequest, ingress: IngressId | None, now: float) -> None:
        self.request = request
        self.ingress = ingress
        self.asked_at = now
        self.since = now
        """Since when its time to the first token counts for admission: `asked_at`, or when an outage was over."""
        self.age_s = request.age_s
        """What it had waited until `since`."""
        self.is_outage = False
        """It waits because no worker lives."""
        self.gives_up_at = now
        """When its objective cannot be met any more. Known once it has been considered."""
        self.ttft_s = 1.0
        """Its TTFT objective."""
        self.try_at = now
        """When it is worth another look."""

    def outlast(self, until: float) -> None:
        """No worker lives: it waits for one to come."""
        self.is_outage = True
        self.gives_up_at = until

    def begin_anew(self, now: float) -> None:
        """An outage is over. For admission it comes only now, as all do that have waited for the end: who would have
        met an objective by now is no longer the question.
        """
        self.is_outage = False
        self.since, self.age_s = now, 0.0

    def suspect(self, num_engines_lost: int) -> None:
        """So many engines were lost with requests of its digest."""
        if num_engines_lost > self.request.num_engines_lost:
            self.request = msgspec.structs.replace(self.request, num_engines_lost=num_engines_lost)

    def forgive(self) -> None:
        """The workers that it was lost with have recovered."""
        self.request = msgspec.structs.replace(self.request, excluded=frozenset(), lost=frozenset())

    def look_later(self, now: float) -> None:
        """It could not be let in: look again after a small part of the time that it has left."""
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
        """Remove what an ingress has in the queue, but for some requests. Returns what was removed."""
        removed = [r for r, waiting in self._waiting.items() if waiting.ingress == ingress and r not in but]
        for request_id in removed:
            del self._waiting[request_id]
        return removed

    def in_order(self, now: float) -> list[Waiting]:
        return sorted(self._waiting.values(), key=lambda waiting: self._rank(waiting, now))

    def next_look_at(self) -> float | None:
        """When somebody is worth another look, or cannot make it any more: queues drain without a word."""
        looks = (min(waiting.try_at, waiting.gives_up_at) for waiting in self._waiting.values())
        return min(looks, default=None)

    def num_before(self, waiting: Waiting, now: float) -> int:
        """Of those that wait, how many are served before one that does not wait yet."""
        rank = self._rank(waiting, now)
        return sum(self._rank(other, now) < rank for other in self._waiting.values())

    def _rank(self, waiting: Waiting, now: float) -> tuple[int, float]:
        waited_s = now - waiting.since
        return band(waiting.request.slo_class, waited_s, waiting.ttft_s), waiting.gives_up_at
