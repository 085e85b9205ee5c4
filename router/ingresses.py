"""The ingress processes that speak to the Scheduler: the connection of each, and the events that were taken from it.
Pure.

An ingress process is known by its id and not by its connection: it may lose one and come back over another.

- **One connection.** An ingress numbers its connections. Messages over its last connection count; messages that an
  earlier connection still brings are dropped. So the messages that count are in the order in which they were sent.
- **Once.** An ingress numbers its events, and repeats events that were not acknowledged. An event counts if its number
  is higher than that of each event before.
- **The open set is exact.** An ingress lists its open requests in one message. Every placement that it asked for before
  was asked for earlier on the same connection, or on one that no longer counts. So a charge of the ingress that is not
  in the list belongs to a request that is over, even if the event that closed the request was lost with a connection.
- **Grace.** An ingress without a connection keeps its charges for GRACE_SWEEPS sweeps, since it may come back. Then it
  is gone. It may still come back, and so its numbers go on: what was taken from it is not taken again, and its earlier
  connections still do not count.
"""

from typing import Final, final

from cluster.messages.ids import IngressId
from cluster.messages.scheduler_events import Events, OpenRequests, SchedulerEvent

SWEEP_S: Final = 1.0
"""Time between two calls of `sweep` while an ingress has no connection, in seconds. Together with GRACE_SWEEPS it sets
the grace. Lower forgets the requests of an ingress that only lost its connection; higher keeps the room of a dead
ingress's requests for longer.
"""
GRACE_SWEEPS: Final = 5
"""Sweeps for which the charges of an ingress outlive its connection. Lower forgets the requests of an ingress that only
lost its connection: until the workers' reports count these requests, others are placed where they still run. Higher
keeps the room of a dead ingress's requests from others. It is a count and not a time: a Scheduler that was itself
stopped hears the ingress first.
"""
MAX_GONE: Final = 1024
"""Most ingresses that are gone and whose numbers are remembered. More takes more memory, some 200 bytes each; fewer
takes events twice from an ingress that comes back late.
"""


@final
class _Ingress:
    __slots__ = ("connection", "num_sweeps", "number", "taken_through")

    def __init__(self, connection: object, number: int) -> None:
        self.connection = connection
        self.number = number
        """The number that the ingress gave to the connection."""
        self.num_sweeps: int | None = None
        """Sweeps since the ingress lost its connection. None while it has one."""
        self.taken_through = 0
        """Number of the last event that was taken from the ingress."""


@final
class Ingresses:
    """A connection is any object; its identity is its key."""

    __slots__ = ("_gone", "_known", "_speaking")

    def __init__(self) -> None:
        self._known: dict[IngressId, _Ingress] = {}
        self._gone: dict[IngressId, _Ingress] = {}
        """Ingresses whose grace is over, the last one last. Disjoint from `_known`."""
        self._speaking: dict[object, IngressId] = {}

    def introduced(self, message: OpenRequests, connection: object) -> bool:
        """An ingress gives its id and its open requests. Returns False if the message does not count."""
        ingress = message.ingress
        if self._speaking.get(connection, ingress) != ingress:
            return False
        known = self._known.get(ingress) or self._gone.get(ingress)
        if known is None:
            known = _Ingress(connection, message.connection)
        elif message.connection < known.number:
            return False
        elif known.connection is not connection:
            self._speaking.pop(known.connection, None)
            known.connection, known.number = connection, message.connection
        known.num_sweeps = None
        self._gone.pop(ingress, None)
        self._known[ingress] = known
        self._speaking[connection] = ingress
        return True

    def speaking(self, connection: object) -> IngressId | None:
        """The ingress whose messages count on this connection."""
        return self._speaking.get(connection)

    def connection_of(self, ingress: IngressId) -> object | None:
        """The connection of an ingress. None if it has none."""
        known = self._known.get(ingress)
        return known.connection if known is not None and known.num_sweeps is None else None

    def take(self, connection: object, message: Events) -> list[SchedulerEvent]:
        """The events of a message that count and have not been taken before."""
        known = self._known_on(connection)
        if known is None:
            return []
        num_taken = max(0, known.taken_through + 1 - message.first)
        known.taken_through = max(known.taken_through, message.first + len(message.events) - 1)
        return message.events[num_taken:]

    def taken_through(self, connection: object) -> int:
        """The number of the event to acknowledge on this connection. 0 if there is none."""
        known = self._known_on(connection)
        return known.taken_through if known is not None else 0

    def lost(self, connection: object) -> IngressId | None:
        """A connection has ended. Returns the ingress that has no connection any more, if there is one."""
        ingress = self._speaking.pop(connection, None)
        if ingress is not None:
            self._known[ingress].num_sweeps = 0
        return ingress

    @property
    def needs_sweep(self) -> bool:
        """At least one ingress has no connection."""
        return any(known.num_sweeps is not None for known in self._known.values())

    def sweep(self) -> list[IngressId]:
        """Returns the ingresses whose grace is over now."""
        gone = []
        for ingress, known in self._known.items():
            if known.num_sweeps is not None:
                known.num_sweeps += 1
                if known.num_sweeps >= GRACE_SWEEPS:
                    gone.append(ingress)
        for ingress in gone:
            self._gone[ingress] = self._known.pop(ingress)
            self._gone[ingress].connection = None  # a closed connection would be kept in memory
        while len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        return gone

    def _known_on(self, connection: object) -> _Ingress | None:
        ingress = self._speaking.get(connection)
        return self._known[ingress] if ingress is not None else None
