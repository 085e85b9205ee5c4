"""StageLog: what a worker has measured of one request before its first token. Pure.

The stages leave with the first token, in a message that is sent anyway. Their times are seconds from the time at which
the worker got the request.
"""

from cluster.messages.timeline import Note, TimelineStage

IN_QUEUE = "engine_queue"
"""When a request was in the queue of its engine. It goes on beside a pull, whose own stages say more."""


class StageLog:
    __slots__ = ("_ended_at", "_received_at", "_stages")

    def __init__(self, received_at: float) -> None:
        """`received_at`: when the worker got the request, in seconds of `time.monotonic`, as all times here."""
        self._received_at = self._ended_at = received_at
        self._stages: list[TimelineStage] = []

    def add(self, name: str, began_at: float, ended_at: float, **notes: Note) -> None:
        self._stages.append(
            TimelineStage(name, began_at - self._received_at, ended_at - self._received_at, notes=notes)
        )
        self._ended_at = ended_at

    def go_on(self, name: str, until: float, **notes: Note) -> None:
        """Add a stage that begins where the last one has ended. Does nothing if that was later."""
        if until > self._ended_at:
            self.add(name, self._ended_at, until, **notes)

    def take(self) -> tuple[TimelineStage, ...]:
        """The stages so far. They are given once."""
        taken, self._stages = tuple(self._stages), []
        return taken
