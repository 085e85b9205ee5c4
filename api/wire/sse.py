"""Server-sent events: the frames of a stream as text and bytes. api/server/event_stream.py sends these frames."""

from collections.abc import Callable

import msgspec

from api.wire.errors import error_body
from api.wire.public_bodies import public_frame
from cluster.errors import ServingError

DONE = "data: [DONE]\n\n"
"""The last frame of a stream of chunks."""

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment line. Clients skip it, and proxies see that the connection is alive."""

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-store",
    "x-accel-buffering": "no",
}
"""Headers of every event stream. They ask proxies between the ingress and the client neither to store frames nor to
buffer them.
"""

ErrorIn = Callable[[str], ServingError | None]
"""Returns the error that a frame of vLLM reports, or None if the frame reports none."""


def data_frame(payload: object) -> str:
    return f"data: {msgspec.json.encode(payload).decode()}\n\n"


def error_frame(error: ServingError) -> bytes:
    """An error as a frame of a stream of chunks."""
    return data_frame(error_body(error)).encode()


def to_wire(frame: str, error_in: ErrorIn) -> bytes:
    """A frame of vLLM as the client gets it: without vLLM's extra fields, and with errors in OpenAI's shape."""
    error = error_in(frame)
    return error_frame(error) if error else public_frame(frame).encode()


def named_frame(name: str, payload: object) -> bytes:
    """A frame with a name of its own, which is no part of OpenAI's API."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(payload) + b"\n\n"


class _Typed(msgspec.Struct):
    type: str


def event_frame(event: bytes) -> bytes:
    """The frame of an event of a response, whose JSON is `event`. The frame is named by the type of the event."""
    kind = msgspec.json.decode(event, type=_Typed).type
    return b"event: " + kind.encode() + b"\ndata: " + event + b"\n\n"


def error_event(error: ServingError, number: int) -> bytes:
    """The frame that ends the stream of a response that cannot go on. `number` is the number of that event."""
    event = {
        "type": "error",
        "sequence_number": number,
        "code": error.code,
        "message": str(error),
        "param": error.param,
    }
    return event_frame(msgspec.json.encode(event))
