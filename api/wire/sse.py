"""Server-sent events: what the frames of a stream must look like on the wire."""

from collections.abc import Callable

import msgspec

from api.wire.bodies import public_frame
from api.wire.errors import error_body
from cluster.errors import ServingError

DONE = "data: [DONE]\n\n"

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, proxies see that the connection lives."""

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-store",
    "x-accel-buffering": "no",
}
"""Proxies between us and the client must neither store nor hold back frames."""

ErrorIn = Callable[[str], ServingError | None]
"""The error that a frame reports, if it does."""


def data_frame(payload: object) -> str:
    return f"data: {msgspec.json.encode(payload).decode()}\n\n"


def error_frame(error: ServingError) -> bytes:
    """In a stream of chunks."""
    return data_frame(error_body(error)).encode()


def to_wire(frame: str, error_in: ErrorIn) -> bytes:
    """A frame of vLLM's for the client, with errors in OpenAI's shape."""
    error = error_in(frame)
    return error_frame(error) if error else public_frame(frame).encode()


class _Typed(msgspec.Struct):
    type: str


def event_frame(event: bytes) -> bytes:
    """An event of a response, as JSON, named by its type."""
    kind = msgspec.json.decode(event, type=_Typed).type
    return b"event: " + kind.encode() + b"\ndata: " + event + b"\n\n"


def error_event(error: ServingError, number: int) -> bytes:
    """The last of a response's events, where its stream cannot go on."""
    event = {
        "type": "error",
        "sequence_number": number,
        "code": error.code,
        "message": str(error),
        "param": error.param,
    }
    return event_frame(msgspec.json.encode(event))
