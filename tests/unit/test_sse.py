from collections.abc import AsyncGenerator

import pytest

from api.wire import sse
from cluster.errors import GenerationFailed, ServingError

DONE = "data: [DONE]\n\n"
TEXT = 'data: {"text":"a"}\n\n'
BROKEN = 'data: {"error":"broken"}\n\n'


class Frames:
    """vLLM's frames, and whether their generator was closed."""

    def __init__(self, *frames: str) -> None:
        self._frames = frames
        self.is_closed = False

    async def __call__(self) -> AsyncGenerator[str, None]:
        try:
            for frame in self._frames:
                yield frame
        finally:
            self.is_closed = True


def error_in(frame: str) -> ServingError | None:
    return GenerationFailed("worker d0 is gone", "d0") if frame.startswith('data: {"error"') else None


async def bytes_of(*frames: str) -> str:
    return "".join([frame async for frame in await sse.started(Frames(*frames)(), error_in)])


async def test_stream_is_passed_on_as_it_is():
    assert await bytes_of(TEXT, TEXT, DONE) == TEXT + TEXT + DONE


async def test_stream_that_ends_without_a_terminal_frame_gets_one():
    assert await bytes_of(TEXT) == TEXT + DONE


async def test_stream_without_any_frame_is_the_terminal_frame_alone():
    assert await bytes_of() == DONE
    assert await bytes_of(DONE) == DONE


async def test_nothing_follows_the_terminal_frame():
    assert await bytes_of(TEXT, DONE, TEXT, DONE) == TEXT + DONE


async def test_error_in_the_first_frame_is_raised():
    frames = Frames(BROKEN, DONE)
    with pytest.raises(GenerationFailed, match="worker d0 is gone"):
        await sse.started(frames(), error_in)
    assert frames.is_closed


async def test_error_in_mid_stream_is_a_frame_in_openai_s_shape():
    assert await bytes_of(TEXT, BROKEN, DONE) == (
        'data: {"text":"a"}\n\n'
        'data: {"error":{"message":"worker d0 is gone","type":"server_error","param":null,"code":"worker_failed"}}\n\n'
        "data: [DONE]\n\n"
    )


async def test_internal_nulls_are_dropped_from_every_frame():
    chunk = 'data: {"index":0,"token_ids":null}\n\n'
    assert await bytes_of(chunk, chunk) == 'data: {"index":0}\n\n' * 2 + DONE


async def test_consumer_that_stops_closes_the_generator():
    frames = Frames(TEXT, TEXT, DONE)
    stream = await sse.started(frames(), error_in)
    assert await anext(stream) == TEXT
    assert not frames.is_closed
    await stream.aclose()
    assert frames.is_closed


async def test_generator_is_closed_when_the_stream_ends():
    frames = Frames(TEXT, DONE)
    stream = await sse.started(frames(), error_in)
    assert [frame async for frame in stream] == [TEXT, DONE]
    assert frames.is_closed


def test_data_frame_is_compact_json():
    assert sse.data_frame({"a": [1, "é"]}) == 'data: {"a":[1,"é"]}\n\n'
