"""What an ingress process has to tell the Scheduler, kept until the Scheduler has it. Pure.

Events are numbered and posted at once, and kept until their numbers are acknowledged. On a new connection to the same
Scheduler process the open requests are listed first, then the kept events are sent again; the Scheduler takes each once
(router/ingresses.py). Requests whose end is among the kept events are listed as open, so that the Scheduler learns from
their end.

Another Scheduler process begins without our requests, so no kept event about one of them concerns it. What outlasts
requests is told to it again: lost engines, and wrong handoffs.
"""

from collections import deque

import msgspec

from cluster.messages.ids import IngressId, RequestId, WorkerId
from cluster.messages.placement import PlacementRequest
from cluster.messages.scheduler_events import (
    EngineLostWith,
    Events,
    OpenRequests,
    PairSuspected,
    RequestClosed,
    SchedulerEvent,
    WorkerLost,
)

MAX_KEPT = 10_000
"""Events that are kept for a Scheduler that does not answer, in number; an event has about a hundred bytes. Beyond it
the oldest are dropped: the list of open requests still ends their charges, and what the Scheduler would have learned
from them is lost.
"""
LASTING_S = 600.0
"""How long a lost engine or a wrong handoff is told to each new Scheduler process, in seconds. Longer has the
Scheduler act on old ones, shorter lets a new process forget them.
"""
MAX_LASTING = 1024
"""Lost engines and wrong handoffs that are remembered for a new Scheduler process, in number. More costs memory, some
200 bytes each, fewer are forgotten when the Scheduler is replaced.
"""


class SchedulerOutbox:
    def __init__(self, ingress: IngressId, max_kept: int = MAX_KEPT) -> None:
        self._ingress = ingress
        self._open: dict[RequestId, None] = {}
        self._kept: deque[tuple[int, SchedulerEvent]] = deque(maxlen=max_kept)
        self._last_number = self._num_connections = 0
        self._scheduler: str | None = None
        """The process that the kept events are for."""
        self._lasting: dict[bytes | tuple[WorkerId, WorkerId], tuple[float, SchedulerEvent]] = {}
        """What outlasts requests, and when it was told; the highest count by digest, and the latest by pair of
        workers.
        """

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

    def put(self, event: SchedulerEvent, now: float) -> Events:
        """Returns the message to post now, if there is a connection."""
        match event:
            case RequestClosed():
                self._open.pop(event.request_id, None)
                if event.is_harmless:
                    self._lasting.pop(event.digest, None)
            case EngineLostWith():
                if event.num_engines_lost >= self._num_lost(event.digest):
                    self._remember(event.digest, event, now)
            case PairSuspected():
                self._remember((event.prefill, event.decode), event, now)
        return Events(self._keep(event), [event])

    def heard(self, through: int) -> None:
        """The Scheduler has all events up to this number."""
        while self._kept and self._kept[0][0] <= through:
            self._kept.popleft()

    def connected(self, scheduler: str, now: float) -> tuple[OpenRequests, list[Events]]:
        """The messages to post first on a new connection. `scheduler`: the process at its other end.

        The loss of a worker is not repeated: the worker's reports have shown since whether it lives.
        """
        self._num_connections += 1
        if scheduler != self._scheduler:
            self._scheduler = scheduler
            self._kept.clear()
            for at, event in self._lasting.values():
                if now - at < LASTING_S:
                    is_loss = isinstance(event, EngineLostWith)
                    self._keep(msgspec.structs.replace(event, age_s=now - at) if is_loss else event)
        ended = [event.request_id for _, event in self._kept if isinstance(event, RequestClosed)]
        kept = [Events(number, [event]) for number, event in self._kept if not isinstance(event, WorkerLost)]
        return OpenRequests(self._ingress, self._num_connections, [*self._open, *ended]), kept

    def _keep(self, event: SchedulerEvent) -> int:
        self._last_number += 1
        self._kept.append((self._last_number, event))
        return self._last_number

    def _num_lost(self, digest: bytes) -> int:
        _, known = self._lasting.get(digest, (0.0, None))
        return known.num_engines_lost if isinstance(known, EngineLostWith) else 0

    def _remember(self, key: bytes | tuple[WorkerId, WorkerId], event: SchedulerEvent, now: float) -> None:
        self._lasting.pop(key, None)
        self._lasting[key] = now, event
        while len(self._lasting) > MAX_LASTING:
            del self._lasting[next(iter(self._lasting))]
