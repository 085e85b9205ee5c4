"""Server-sent events: what a stream of frames must look like on the wire, whatever happens to the generator behind
it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import msgspec

from api.wire.bodies import public_frame
from api.wire.errors import error_body
from cluster.errors import ServingError

DONE = "data: [DONE]\n\n"

MEDIA_TYPE = "text/event-stream"

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Proxies between us and the client must neither store nor hold back frames."""


def data_frame(payload: object) -> str:
    return f"data: {msgspec.json.encode(payload).decode()}\n\n"


async def started(
    frames: AsyncGenerator[str, None], error_in: Callable[[str], ServingError | None]
) -> AsyncIterator[str]:
    """Wait for the first frame, so that a request that fails before it gets a status instead of a broken stream.

    Raises:
        ServingError: the first frame reports an error (`error_in`).
    """
    first = await anext(frames, DONE)
    if error := error_in(first):
        await frames.aclose()
        raise error
    return _terminated(first, frames, error_in)


async def _terminated(
    first: str, frames: AsyncGenerator[str, None], error_in: Callable[[str], ServingError | None]
) -> AsyncIterator[str]:
    """All frames, errors in OpenAI's shape, and exactly one terminal frame."""
    async with aclosing(frames):
        yield public_frame(first)
        async for frame in frames:
            if frame == DONE:
                break
            error = error_in(frame)
            yield data_frame(error_body(error)) if error else public_frame(frame)
    if first != DONE:
        yield DONE
