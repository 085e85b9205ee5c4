"""TimelineStage: one part of a request's time, for the timeline of its route receipt."""

import msgspec

UNMEASURED = {"send": "way", "network": "way", "wait": "wait", "unmeasured": "worker"}
"""Stages that nothing has measured, and the part of a request's time that each belongs to. They are what is left of a
time between measured ones: on the way between ingress and worker, on a worker between two of its stages, and all of an
answer of a worker that has measured nothing.
"""
Note = int | float | str
"""A number, or a word of Baton's own. Never a text of a client."""


class TimelineStage(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """A part of a request's time, at one place. docs/tracing.md says what each name means."""

    name: str
    start_s: float
    """Seconds from the arrival of the request at the ingress. In a message of a worker: seconds from the time at which
    the worker got the request, because the clocks of two machines differ.
    """
    end_s: float
    place: str = ""
    """`ingress`, `scheduler`, or the id of a worker. Empty in a message of a worker."""
    notes: dict[str, Note] = {}
    """What explains the time: tokens, bytes, the size of a batch, why."""

    @property
    def is_measured(self) -> bool:
        """False if it is what is left between measured stages."""
        return self.name not in UNMEASURED
