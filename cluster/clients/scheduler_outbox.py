"""Events of an ingress process for the Scheduler, kept until the Scheduler has them. Pure.

Events are numbered and sent soon (cluster/clients/event_sender.py), and kept until their numbers are acknowledged. On a
new connection to the same Scheduler process, the open requests are listed first, and then the kept events are sent
again; the Scheduler takes each event once (router/ingresses.py). A closed request whose end is among the kept events is
listed as open, so that the Scheduler learns from its end.

A new Scheduler process does not know the requests of this ingress, so kept events about them are dropped. Lost engines
and wrong handoffs outlast requests, and are sent to it again.
"""

from collections import deque

import msgspec

from cluster.messages.ids import IngressId, RequestId, WorkerId
from cluster.messages.placement import PlacementRequest
from cluster.messages.scheduler_events import (
    EngineLostWith,
    Events,
    HandoffChecked,
    OpenRequests,
    RequestClosed,
    SchedulerEvent,
    WorkerLost,
)

MAX_KEPT = 10_000
"""Most events that are kept for a Scheduler that does not answer. An event has about a hundred bytes. Beyond the limit
the oldest events are dropped: the list of open requests still ends their charges, but the Scheduler does not learn from
them. More takes more memory; fewer loses more of what the Scheduler would learn.
"""
LASTING_S = 600.0
"""Age up to which a lost engine or a wrong handoff is sent to a new Scheduler process, in seconds. Longer makes the
Scheduler act on old events; shorter lets a new process forget them.
"""
MAX_LASTING = 1024
"""Most lost engines and wrong handoffs that are kept for a new Scheduler process. More takes more memory, some 200
bytes each; fewer are forgotten when the Scheduler is replaced.
"""

Lasting = EngineLostWith | HandoffChecked


class SchedulerOutbox:
    def __init__(self, ingress: IngressId, max_kept: int = MAX_KEPT) -> None:
        self._ingress = ingress
        self._open: dict[RequestId, None] = {}
        self._kept: deque[tuple[int, SchedulerEvent]] = deque(maxlen=max_kept)
        self._last_number = self._num_connections = 0
        self._scheduler: str | None = None
        """The Scheduler process that the kept events are for."""
        self._lasting: dict[bytes | tuple[WorkerId, WorkerId], tuple[float, Lasting]] = {}
        """Events that outlast requests, with their times, by digest or by pair of workers. The event with the highest
        count is kept.
        """

    def open_requests(self) -> OpenRequests:
        return OpenRequests(self._ingress, self._num_connections, list(self._open))

    def asks(self, request: PlacementRequest) -> None:
        """The ingress is about to ask for a placement."""
        self._open[request.request_id] = None

    def put(self, event: SchedulerEvent, now: float) -> Events:
        """Keep an event. Returns the message to post now, if there is a connection."""
        match event:
            case RequestClosed():
                self._open.pop(event.request_id, None)
                if event.is_harmless:
                    self._lasting.pop(event.digest, None)
            case EngineLostWith():
                if event.num_engines_lost >= self._num_lost(event.digest):
                    self._remember(event.digest, event, now)
            case HandoffChecked() if event.verdict.is_strike:
                if event.num_strikes >= self._num_strikes((event.prefill, event.decode), now):
                    self._remember((event.prefill, event.decode), event, now)
        return Events(self._keep(event), [event])

    def heard(self, through: int) -> None:
        """The Scheduler has all events up to the number `through`."""
        while self._kept and self._kept[0][0] <= through:
            self._kept.popleft()

    def connected(self, scheduler: str, now: float) -> tuple[OpenRequests, list[Events]]:
        """The first messages to post on a new connection. `scheduler` is the process at its other end.

        The loss of a worker is not sent again: the worker's later reports show whether it lives.
        """
        self._num_connections += 1
        if scheduler != self._scheduler:
            self._scheduler = scheduler
            self._kept.clear()
            for at, event in self._lasting.values():
                if now - at < LASTING_S:
                    self._keep(msgspec.structs.replace(event, age_s=now - at))
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

    def _num_strikes(self, pair: tuple[WorkerId, WorkerId], now: float) -> int:
        at, known = self._lasting.get(pair, (0.0, None))
        return known.num_strikes if isinstance(known, HandoffChecked) and now - at < LASTING_S else 0

    def _remember(self, key: bytes | tuple[WorkerId, WorkerId], event: Lasting, now: float) -> None:
        self._lasting.pop(key, None)
        self._lasting[key] = now, event
        while len(self._lasting) > MAX_LASTING:
            del self._lasting[next(iter(self._lasting))]
