"""What an ingress process has to tell the Scheduler, kept until the Scheduler has it. Pure.

Events are numbered and posted at once, and kept until their numbers are acknowledged. On a new connection to the same
Scheduler process the open requests are listed first, then the kept events are sent again; the Scheduler takes each once
(router/ingresses.py). Another Scheduler process begins without our requests, so nothing that is kept concerns it.
"""

from collections import deque

from cluster.types import (
    Events,
    IngressId,
    OpenRequests,
    PlacementRequest,
    RequestClosed,
    RequestId,
    SchedulerEvent,
    WorkerLost,
)

MAX_KEPT = 10_000
"""Events that are kept for a Scheduler that does not answer, in number; an event has about a hundred bytes. Beyond it
the oldest are dropped: the list of open requests still ends their charges, and what the Scheduler would have learned
from them is lost.
"""


class Outbox:
    def __init__(self, ingress: IngressId, max_kept: int = MAX_KEPT) -> None:
        self._ingress = ingress
        self._open: dict[RequestId, None] = {}
        self._kept: deque[tuple[int, SchedulerEvent]] = deque(maxlen=max_kept)
        self._last_number = self._num_connections = 0
        self._scheduler: str | None = None
        """The process that the kept events are for."""

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def num_open(self) -> int:
        return len(self._open)

    def open_requests(self) -> OpenRequests:
        return OpenRequests(self._ingress, self._num_connections, list(self._open))

    def asks(self, request: PlacementRequest) -> None:
        """A placement is about to be asked for."""
        self._open[request.request_id] = None

    def put(self, event: SchedulerEvent) -> Events:
        """Returns the message to post now, if there is a connection."""
        if isinstance(event, RequestClosed):
            self._open.pop(event.request_id, None)
        self._last_number += 1
        self._kept.append((self._last_number, event))
        return Events(self._last_number, [event])

    def heard(self, through: int) -> None:
        """The Scheduler has all events up to this number."""
        while self._kept and self._kept[0][0] <= through:
            self._kept.popleft()

    def connected(self, scheduler: str) -> tuple[OpenRequests, list[Events]]:
        """The messages to post first on a new connection. `scheduler`: the process at its other end.

        The loss of a worker is not repeated: the worker's reports have shown since whether it lives.
        """
        self._num_connections += 1
        if scheduler != self._scheduler:
            self._scheduler = scheduler
            self._kept.clear()
        kept = [Events(number, [event]) for number, event in self._kept if not isinstance(event, WorkerLost)]
        return self.open_requests(), kept
