"""TimelineStage: one part of a request's time, for the timeline of its route receipt."""

import msgspec

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
