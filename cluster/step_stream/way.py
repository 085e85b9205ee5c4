"""What the ingress measures of its own part of the way to a worker and back. Pure.

It stands among the stages that the worker has sent with its first token. Its times are seconds of the ingress's clock,
and no others of these stages are.
"""

from cluster.messages.timeline import TimelineStage

CONNECT = "connect"
"""From the start of an attempt, at 0, until there was a connection over which the request was sent."""
DELIVER = "deliver"
"""From the moment at which the ingress has read the answer until the session takes it, which ends the stage. It begins
so many seconds after the request was sent.
"""


def on_the_way(
    measured: tuple[TimelineStage, ...] | None, *, connect_s: float | None = None, came_s: float | None = None
) -> tuple[TimelineStage, ...] | None:
    """A worker's stages with these two. None for one that is not known. `connect_s`: the length of CONNECT. `came_s`:
    the begin of DELIVER.
    """
    if not measured:
        return measured
    connect = () if connect_s is None else (TimelineStage(CONNECT, 0.0, connect_s),)
    deliver = () if came_s is None else (TimelineStage(DELIVER, came_s, came_s),)
    return (*connect, *measured, *deliver)
