"""A stream's bytes and life on the ASGI side, with a generator, a client and pauses that a test chooses."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from api.edge.capacity import Capacity
from api.edge.edge import Edge
from api.server.event_stream import CountedStream, EventStream
from cluster.config.ingress import IngressConfig
from cluster.errors import ContentFiltered, Overloaded, ServingError
from cluster.simulation.clock import VirtualLoop
from tests.component.open_access import OPEN

DONE = "data: [DONE]\n\n"
TEXT = 'data: {"text":"a"}\n\n'
BROKEN = 'data: {"error":"broken"}\n\n'
COMMENT = ": keep-alive\n\n"
REFUSAL = 'data: {"error":{"message":"full","type":"server_error","param":null,"code":"engine_overloaded"}}\n\n'

SOON = 1 / 64
"""Keep-alive interval of a test that waits for comments, in seconds. A test that needs a time below the interval
runs on a VirtualLoop: on a loaded machine, a sleep of SOON / 4 can take longer than SOON. SOON is a power of two, so
that sums of virtual times are exact.
"""


def error_in(frame: str) -> ServingError | None:
    return Overloaded("full", 2.0) if frame.startswith('data: {"error"') else None


Step = str | bytes | float | Callable[[], Awaitable[None]]


class Frames:
    """Yields frames, sleeps where it is given a number, waits for what it calls; knows whether it was closed."""

    def __init__(self, *steps: Step) -> None:
        self._steps = steps
        self.is_closed = False

    async def __call__(self) -> AsyncGenerator[str | bytes, None]:
        try:
            for step in self._steps:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif callable(step):
                    await step()
                else:
                    yield step
        finally:
            self.is_closed = True


class Client:
    """The ASGI server's side. `leave` disconnects; `accept` makes sends wait until it is set."""

    def __init__(self) -> None:
        self._has_asked = False
        self.messages: list[MutableMapping[str, Any]] = []
        self.leave = asyncio.Event()
        self.accept = asyncio.Event()
        self.accept.set()
        self._taken = asyncio.Condition()

    async def receive(self) -> dict[str, Any]:
        if not self._has_asked:
            self._has_asked = True
            return {"type": "http.request", "body": b""}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.accept.wait()
        self.messages.append(message)
        async with self._taken:
            self._taken.notify_all()

    async def has_taken(self, num_messages: int) -> None:
        async with self._taken:
            await self._taken.wait_for(lambda: len(self.messages) >= num_messages)

    async def takes(self, frames: Frames, keep_alive_s: float = 60.0) -> "Client":
        return await self.takes_stream(EventStream(frames(), error_in, lambda: {"x-baton-path": "D"}, keep_alive_s))

    async def takes_stream(self, stream: EventStream) -> "Client":
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await stream(scope, receive, send)

        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/", "headers": headers}
        await Edge(app, IngressConfig(), Capacity(1), OPEN)(scope, self.receive, self.send)
        return self

    @property
    def status(self) -> int:
        (start,) = [message for message in self.messages if message["type"] == "http.response.start"]
        assert start is self.messages[0]
        return start["status"]

    @property
    def text(self) -> str:
        *rest, last = self.messages[1:]
        assert not last.get("more_body", False)
        assert all(message["more_body"] for message in rest)
        return b"".join(message["body"] for message in self.messages[1:]).decode()


async def taken(*steps: str | bytes | float, keep_alive_s: float = 60.0) -> Client:
    frames = Frames(*steps)
    client = await Client().takes(frames, keep_alive_s)
    assert frames.is_closed
    return client


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((TEXT, TEXT, DONE), TEXT + TEXT + DONE),
        ((TEXT.encode(), TEXT, DONE), TEXT + TEXT + DONE),
        ((TEXT,), TEXT + DONE),
        ((), DONE),
        ((DONE,), DONE),
        ((TEXT, DONE, TEXT, DONE), TEXT + DONE),
        ((TEXT, BROKEN, DONE), TEXT + REFUSAL + DONE),
    ],
    ids=["as it is", "bytes", "no terminal frame", "nothing", "only done", "after done", "error midway"],
)
async def test_stream_is_its_frames_and_one_terminal_frame(steps: tuple[Any, ...], text: str) -> None:
    client = await taken(*steps)
    assert (client.status, client.text) == (200, text)


async def test_status_comes_with_the_stream_s_headers() -> None:
    headers = dict((await taken(TEXT)).messages[0]["headers"])
    assert headers.pop(b"x-request-id").startswith(b"req_")
    assert headers.pop(b"openai-processing-ms").isdigit()
    assert headers == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache, no-store",
        b"x-content-type-options": b"nosniff",
        b"x-accel-buffering": b"no",
        b"x-baton-path": b"D",
    }


async def test_error_in_the_first_frame_is_a_status() -> None:
    client = await taken(BROKEN, DONE)
    assert client.status == 503
    assert dict(client.messages[0]["headers"])[b"retry-after"] == b"2"


async def test_input_that_is_filtered_is_a_status_that_names_its_event() -> None:
    refused = ContentFiltered("the input is not allowed here", "messages", "safe_1")

    async def raises() -> AsyncGenerator[str | bytes, None]:
        raise refused
        yield TEXT

    def filtered(frame: str) -> ServingError | None:
        return refused if frame == BROKEN else None

    for frames in (raises(), Frames(BROKEN, DONE)()):
        client = await Client().takes_stream(EventStream(frames, filtered, dict, 60.0))
        headers = dict(client.messages[0]["headers"])
        assert (client.status, headers[b"x-safety-event-id"], headers[b"x-should-retry"]) == (400, b"safe_1", b"false")


async def test_error_in_the_first_frame_is_still_a_status_after_a_short_silence() -> None:
    assert (await taken(SOON, BROKEN, DONE)).status == 503


async def test_comments_fill_the_silence_before_the_first_frame() -> None:
    client = Client()
    await client.takes(Frames(lambda: client.has_taken(3), TEXT), keep_alive_s=SOON)
    assert client.status == 200
    assert client.text.startswith(COMMENT + COMMENT)
    assert client.text.replace(COMMENT, "") == TEXT + DONE


async def test_error_after_the_first_comment_is_a_frame() -> None:
    client = await taken(1.5 * SOON, BROKEN, keep_alive_s=SOON)
    assert (client.status, client.text.replace(COMMENT, "")) == (200, REFUSAL + DONE)


async def test_comments_fill_the_silence_between_frames_and_lose_none() -> None:
    client = await taken(TEXT, 2.5 * SOON, TEXT, 2.5 * SOON, TEXT, keep_alive_s=SOON)
    assert client.text.replace(COMMENT, "") == TEXT * 3 + DONE
    assert client.text.count(COMMENT) >= 2
    assert client.text.startswith(TEXT + COMMENT)


def test_stream_that_is_not_silent_has_no_comments() -> None:
    steps: list[str | bytes | float] = [TEXT, SOON / 4]
    client = VirtualLoop().run(taken(*steps * 12, keep_alive_s=SOON))
    assert client.text == TEXT * 12 + DONE


def test_comments_are_as_far_apart_as_the_silence_allows() -> None:
    client = VirtualLoop().run(taken(TEXT, 3.5 * SOON, TEXT, SOON / 2, TEXT, keep_alive_s=SOON))
    assert client.text == TEXT + COMMENT * 3 + TEXT * 2 + DONE


def test_slow_client_is_sent_no_comments() -> None:
    async def slow() -> Client:
        client = Client()
        client.accept.clear()
        taking = asyncio.ensure_future(client.takes(Frames(TEXT, TEXT), SOON))
        await asyncio.sleep(3 * SOON)
        client.accept.set()
        return await taking

    assert VirtualLoop().run(slow()).text == TEXT + TEXT + DONE


@pytest.mark.parametrize(
    ("steps", "accepts"),
    [((60.0,), True), ((TEXT, 60.0), True), ((TEXT, TEXT), False), ((60.0,), False)],
    ids=["before the first frame", "between frames", "while a frame waits for it", "while a comment waits for it"],
)
async def test_client_that_leaves_closes_the_generator_at_once(steps: tuple[Any, ...], accepts: bool) -> None:
    client, frames = Client(), Frames(*steps)
    if not accepts:
        client.accept.clear()
    taking = asyncio.ensure_future(client.takes(frames, SOON))
    await asyncio.sleep(2 * SOON)
    client.leave.set()
    await asyncio.wait_for(taking, 1.0)
    assert frames.is_closed


async def test_client_that_takes_nothing_any_more_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    client, frames = Client(), Frames(TEXT, TEXT)
    client.accept.clear()
    await asyncio.wait_for(client.takes(frames, SOON), 5.0)
    assert frames.is_closed
    assert client.messages == []
    assert "took nothing" in caplog.text


async def test_response_that_is_cancelled_closes_the_generator() -> None:
    client, frames = Client(), Frames(TEXT, 60.0)
    taking = asyncio.ensure_future(client.takes(frames))
    await asyncio.sleep(0.01)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert frames.is_closed


async def test_bug_in_the_generator_is_not_swallowed() -> None:
    async def broken() -> AsyncGenerator[str | bytes, None]:
        yield TEXT
        raise RuntimeError("bug")

    client = Client()
    with pytest.raises(RuntimeError, match="bug"):
        await EventStream(broken(), error_in, dict, 60.0)({"type": "http"}, client.receive, client.send)


async def test_counted_stream_gives_its_place_back_when_its_client_leaves() -> None:
    capacity, sent = Capacity(1), asyncio.Event()
    units, frames = capacity.acquire(), Frames(TEXT, 1000.0)
    assert units is not None
    stream = CountedStream(units, frames(), error_in=error_in, headers_of_status=dict, keep_alive_s=1000.0)

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            sent.set()

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    answering = asyncio.create_task(stream({"type": "http"}, receive, send))
    await sent.wait()
    assert capacity.num_held == 1
    answering.cancel()
    await asyncio.wait([answering])
    assert (capacity.num_held, frames.is_closed) == (0, True)
