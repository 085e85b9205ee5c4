"""Both halves of the step stream over real sockets, with an engine whose steps the test takes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import (
    ClientTooSlow,
    EngineLost,
    ErrorMessage,
    InvalidRequest,
    RequestPaused,
    ServingError,
    WorkerUnreachable,
)
from cluster.messages.generation import FinishReason, GenerateRequest, TokenDelta
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.timeline import TimelineStage
from cluster.rpc.connection import Connection, Service
from cluster.rpc.frames import Method
from cluster.rpc.listener import Listener, connect
from cluster.rpc.protocol import STREAM_FAILED, StreamFailed
from cluster.step_stream.buffer import DeltaSink
from cluster.step_stream.ingress_side import StepReader
from cluster.step_stream.unread import UnreadTokens
from cluster.step_stream.worker_side import MAX_STEP_DELTAS, StepStreams
from kvtransfer.handoff import KVHandoff

BARRIER = Method[None, None]("barrier", None)
MAX_UNREAD = 20
REFUSED = "refused"


class SteppedEngine:
    """Produces for its running requests what a test says, when it says so."""

    def __init__(self) -> None:
        self.sinks: dict[RequestId, DeltaSink] = {}
        self.stopped: list[RequestId] = []
        self.streams: StepStreams | None = None

    async def start(self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink) -> None:
        await asyncio.sleep(0)
        if request.request_id.startswith(REFUSED):
            raise InvalidRequest("too long", "prompt", "context_length_exceeded")
        self.sinks[request.request_id] = sink

    async def stop(self, request_id: RequestId) -> None:
        self.stopped.append(request_id)
        self.sinks.pop(request_id, None)

    def step(self, deltas: dict[RequestId, TokenDelta]) -> None:
        assert self.streams is not None
        for request_id, delta in deltas.items():
            if sink := self.sinks.get(request_id):
                sink.put(delta)
                if delta.finish_reason:
                    del self.sinks[request_id]
        self.streams.flush()


class Request:
    """One request of an ingress replica: what its reader got, and how it ended."""

    def __init__(self, name: str, ingress: "Ingress") -> None:
        self.id = RequestId(name)
        self.got: list[int] = []
        self.finished = False
        self.error: ServingError | None = None
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._stream = ingress.reader.read(
            ingress.connection, GenerateRequest(request_id=self.id, prompt_token_ids=[1], sampling_params=b""), None
        )
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async with aclosing(self._stream) as deltas:
                async for delta in deltas:
                    self.got += delta.token_ids
                    self.finished |= delta.finish_reason is not None
                    await self.may_read.wait()
        except ServingError as error:
            self.error = error

    async def leave(self) -> None:
        self.reading.cancel()
        await asyncio.wait([self.reading])


async def died_with_it(worker: WorkerId) -> WorkerUnreachable:
    return EngineLost(f"worker {worker} died", worker)


class Ingress:
    def __init__(self, unread: UnreadTokens, reader: StepReader, connection: Connection) -> None:
        self.unread = unread
        self.reader = reader
        self.connection = connection

    @classmethod
    async def join(cls, listener: Listener) -> "Ingress":
        unread = UnreadTokens()
        reader = StepReader(WorkerId("d0"), died_with_it, MAX_UNREAD, unread)
        return cls(unread, reader, await connect(listener.address, reader.service))

    async def settle(self) -> None:
        """Everything sent before, in both directions, has been taken."""
        if self.connection.is_open:
            await self.connection.call(BARRIER, None)
        for _ in range(5):
            await asyncio.sleep(0)


class Cluster:
    def __init__(self, engine: SteppedEngine, streams: StepStreams, ingresses: list[Ingress]) -> None:
        self.engine = engine
        self.streams = streams
        self.ingresses = ingresses

    async def settle(self) -> None:
        for ingress in self.ingresses:
            await ingress.settle()


def num_open(streams: StepStreams) -> int:
    """Streams that run, or are being ended."""
    return sum(len(writer.streams) for writer in streams._writers.values()) + len(streams._ending)


def reset(connection: Connection) -> None:
    """End the peer's side at once: the next message to it is answered by a reset."""
    assert connection._transport is not None
    connection._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


async def _barrier(_: None) -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@asynccontextmanager
async def running(num_ingresses: int = 1) -> AsyncIterator[Cluster]:
    engine, service = SteppedEngine(), Service()
    service.on_call(BARRIER, _barrier)
    streams = engine.streams = StepStreams(engine, service)
    listener = await Listener.start("127.0.0.1", service)
    ingresses = [await Ingress.join(listener) for _ in range(num_ingresses)]
    try:
        yield Cluster(engine, streams, ingresses)
    finally:
        for ingress in ingresses:
            ingress.connection.close()
        await listener.close()
        await asyncio.sleep(0)


def token(number: int, *, last: bool = False) -> TokenDelta:
    return TokenDelta(0, [number], FinishReason.STOP if last else None)


async def test_one_message_carries_what_a_step_produced_for_all_streams() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        posted: list[int] = []
        requests = [Request(f"r{n}", ingress) for n in range(64)]
        await cluster.settle()
        on_step = ingress.reader._on_step

        def count_and_pass_on(connection: Connection, deltas: list[tuple[int, TokenDelta]]) -> None:
            posted.append(len(deltas))
            on_step(connection, deltas)

        ingress.reader.service.on_post(
            Method("step", list[tuple[int, TokenDelta]]),
            count_and_pass_on,
        )
        cluster.engine.step({request.id: token(7, last=True) for request in requests})
        await asyncio.gather(*(request.reading for request in requests))
        assert posted == [64]
        assert all(request.got == [7] for request in requests)
        assert num_open(cluster.streams) == 0


async def test_first_delta_says_when_it_came_to_the_ingress_before_anybody_reads_it() -> None:
    async with running() as cluster:
        loop, (ingress,) = asyncio.get_running_loop(), cluster.ingresses
        request = GenerateRequest(request_id=RequestId("a"), prompt_token_ids=[1], sampling_params=b"")
        began_at = loop.time()
        async with aclosing(ingress.reader.read(ingress.connection, request, None)) as deltas:
            first = asyncio.ensure_future(anext(deltas))
            await ingress.settle()
            cluster.engine.step({request.request_id: TokenDelta(0, [1], stages=(TimelineStage("prefill", 0.0, 0.1),))})
            prefill, deliver = (await first).stages or ()
            assert (prefill.name, deliver.name) == ("prefill", "deliver")
            assert 0.0 <= deliver.start_s <= loop.time() - began_at
            cluster.engine.step({request.request_id: TokenDelta(0, [2], FinishReason.STOP)})
            assert (await anext(deltas)).stages is None


async def test_refused_request_fails_as_the_engine_says_and_harms_no_other() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        refused, other = Request(REFUSED, ingress), Request("other", ingress)
        await refused.reading
        assert isinstance(refused.error, InvalidRequest)
        assert refused.error.code == "context_length_exceeded"
        cluster.engine.step({other.id: token(1, last=True)})
        await other.reading
        assert (other.got, other.finished) == ([1], True)


async def test_dead_engine_fails_its_streams_after_what_they_got() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        request = Request("r", ingress)
        await cluster.settle()
        cluster.engine.sinks[request.id].put(token(1))
        cluster.engine.sinks[request.id].fail(WorkerUnreachable("the engine died", "d0"))
        await request.reading
        assert request.got == [1]
        assert isinstance(request.error, WorkerUnreachable)


async def test_paused_request_gets_what_has_come_and_the_worker_stops_it() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        paused, other = Request("paused", ingress), Request("other", ingress)
        await cluster.settle()
        cluster.engine.step({paused.id: token(1), other.id: token(1)})
        await cluster.settle()
        for name in (paused.id, paused.id, RequestId("unknown")):
            ingress.reader.pause(ingress.connection, name)
        await cluster.settle()
        assert cluster.engine.stopped == [paused.id]
        cluster.engine.step({paused.id: token(2), other.id: token(2, last=True)})
        await cluster.settle()
        assert (paused.got, type(paused.error)) == ([1], RequestPaused)
        assert (other.got, other.finished) == ([1, 2], True)
        ingress.reader.pause(ingress.connection, other.id)
        await cluster.settle()
        assert other.error is None
        assert num_open(cluster.streams) == 0


async def test_reader_that_leaves_before_the_request_has_started_stops_it() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        request = Request("r", ingress)
        await asyncio.sleep(0)
        await request.leave()
        await cluster.settle()
        assert (cluster.engine.sinks, num_open(cluster.streams)) == ({}, 0)


async def test_slow_reader_loses_its_request_and_the_engine_is_told_at_once() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        slow, fast = Request("slow", ingress), Request("fast", ingress)
        slow.may_read.clear()
        await cluster.settle()
        for number in range(2 * MAX_UNREAD):
            cluster.engine.step({slow.id: token(number), fast.id: token(number)})
            await cluster.settle()
        assert cluster.engine.stopped == [slow.id]
        assert fast.got == list(range(2 * MAX_UNREAD))
        slow.may_read.set()
        await slow.reading
        assert isinstance(slow.error, ClientTooSlow)
        assert slow.got == list(range(len(slow.got)))
        assert len(slow.got) > MAX_UNREAD


async def test_worker_whose_ingress_reads_nothing_merges_what_waits() -> None:
    """The kernel's buffers fill up; from then on, each sequence waits as one delta."""
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        request = Request("r", ingress)
        await cluster.settle()
        sink = cluster.engine.sinks[request.id]
        writer = next(iter(cluster.streams._writers.values()))
        sent = 0
        while writer._connection.is_writable:  # nothing is read meanwhile: one event loop
            sink.put(TokenDelta(0, [sent] * 10_000))
            cluster.streams.flush()
            sent += 1
        for number in range(100):
            sink.put(TokenDelta(0, [sent + number]))
            cluster.streams.flush()
        assert len(writer._buffer) == 1


async def test_error_does_not_overtake_tokens_that_wait_for_a_slow_ingress() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        request = Request("r", ingress)
        await cluster.settle()
        sink = cluster.engine.sinks[request.id]
        ingress.reader._buffers[0]._max_unread_tokens = None
        next(iter(cluster.streams._writers)).is_writable = False
        sink.put(token(1))
        cluster.streams.flush()
        sink.fail(WorkerUnreachable("the engine died", "d0"))
        await request.reading
        assert (request.got, type(request.error)) == ([1], WorkerUnreachable)


async def test_tokens_that_cannot_be_sent_end_their_connection_and_no_other_stream() -> None:
    """When the engine fails all that runs, the failure of one must not keep it from the others."""
    async with running(num_ingresses=2) as cluster:
        one, other = (Request(f"r{number}", ingress) for number, ingress in enumerate(cluster.ingresses))
        await cluster.settle()
        cluster.engine.sinks[one.id].put(TokenDelta(0, [1 << 80]))
        for request in (one, other):
            cluster.engine.sinks[request.id].fail(EngineLost("the engine died", "d0"))
        await asyncio.gather(one.reading, other.reading)
        assert isinstance(one.error, WorkerUnreachable)
        assert isinstance(other.error, EngineLost)
        assert not cluster.ingresses[0].connection.is_open and cluster.ingresses[1].connection.is_open


async def test_ingress_that_is_gone_in_the_middle_of_a_step_takes_no_other_along() -> None:
    """The worker notices it with one of the messages of the step, and has more of them."""
    async with running(num_ingresses=2) as cluster:
        gone, other = (Request(f"r{number}", ingress) for number, ingress in enumerate(cluster.ingresses))
        await cluster.settle()
        for number in range(3 * MAX_STEP_DELTAS):
            cluster.engine.sinks[gone.id].put(TokenDelta(0, [number], logprobs=(b"not merged",)))
        reset(cluster.ingresses[0].connection)
        cluster.engine.step({other.id: token(1)})
        cluster.engine.step({other.id: token(2, last=True)})
        await asyncio.gather(gone.reading, other.reading)
        assert (other.got, other.finished, other.error) == ([1, 2], True, None)
        assert isinstance(gone.error, EngineLost), "as with any connection that is lost"
        await cluster.ingresses[1].settle()
        assert cluster.engine.stopped == [gone.id]
        assert num_open(cluster.streams) == 0


async def test_failure_that_cannot_be_sent_ends_its_connection_and_no_other_stream() -> None:
    async with running(num_ingresses=2) as cluster:
        one, other = (Request(f"r{number}", ingress) for number, ingress in enumerate(cluster.ingresses))
        await cluster.settle()
        for request in (one, other):
            cluster.engine.sinks[request.id].fail(InvalidRequest("\ud800" if request is one else "no", "prompt"))
        await asyncio.gather(one.reading, other.reading)
        assert isinstance(one.error, WorkerUnreachable)
        assert isinstance(other.error, InvalidRequest)


async def test_request_that_the_engine_fails_in_part_is_ended_in_the_engine() -> None:
    """Its other sequences, or the tokens after the one that could not be used, would be generated for nobody."""
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        request = Request("r", ingress)
        await cluster.settle()
        cluster.engine.sinks[request.id].fail(ServingError("the schema is too slow"))
        await request.reading
        await cluster.settle()
        assert cluster.engine.stopped == [request.id]
        assert (cluster.engine.sinks, num_open(cluster.streams)) == ({}, 0)


async def test_request_that_is_refused_ends_no_other_of_its_name() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        await Request(REFUSED, ingress).reading
        await cluster.settle()
        assert cluster.engine.stopped == []


async def test_text_of_an_error_that_nobody_has_foreseen_stays_on_the_worker() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        request = Request("r", ingress)
        await cluster.settle()
        cluster.engine.sinks[request.id].fail(RuntimeError("/srv/models/secret.bin"))
        await request.reading
        assert isinstance(request.error, ServingError)
        assert str(request.error) == "the worker failed on this request"


STREAMS = st.integers(0, 5)
START, LEAVE, STEP, FINISH, STALL, RESUME, KILL = "start", "leave", "step", "finish", "stall", "resume", "kill"
ACTIONS = st.one_of(
    st.tuples(st.just(STEP), st.sets(STREAMS)),
    st.tuples(st.sampled_from([START, LEAVE, FINISH, STALL, RESUME]), STREAMS),
    st.tuples(st.just(KILL), st.integers(0, 1)),
)


class Run:
    """Takes actions and knows what every request must have got."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.requests: dict[int, Request] = {}
        self.produced: dict[int, list[int]] = {}
        self.left: set[int] = set()
        self.orphaned: set[int] = set()
        self._number = 0

    async def take(self, action: str, target: int | Iterable[int]) -> None:
        await getattr(self, f"_{action}")(target)
        await self._cluster.settle()

    async def _start(self, stream: int) -> None:
        ingress = self._cluster.ingresses[stream % 2]
        if stream not in self.requests and ingress.connection.is_open:
            self.requests[stream] = Request(f"r{stream}", ingress)
            self.produced[stream] = []

    async def _leave(self, stream: int) -> None:
        if stream in self.requests and not self.requests[stream].reading.done():
            self.left.add(stream)
            await self.requests[stream].leave()

    async def _step(self, streams: Iterable[int]) -> None:
        self._produce(streams)

    async def _finish(self, stream: int) -> None:
        self._produce([stream], last=True)

    async def _stall(self, stream: int) -> None:
        if stream in self.requests:
            self.requests[stream].may_read.clear()

    async def _resume(self, stream: int) -> None:
        if stream in self.requests:
            self.requests[stream].may_read.set()

    async def _kill(self, ingress: int) -> None:
        self._cluster.ingresses[ingress].connection.close()
        self.orphaned |= {stream for stream in self.requests if stream % 2 == ingress}

    def _produce(self, streams: Iterable[int], *, last: bool = False) -> None:
        step = {}
        for stream in streams:
            if stream in self.requests and self.requests[stream].id in self._cluster.engine.sinks:
                self._number += 1
                step[self.requests[stream].id] = token(self._number, last=last)
                self.produced[stream].append(self._number)
        self._cluster.engine.step(step)


@settings(deadline=None, max_examples=150)
@given(st.lists(ACTIONS, max_size=40))
async def test_every_stream_is_whole_in_order_and_alone_whatever_happens_to_the_others(
    actions: list[tuple[Any, ...]],
) -> None:
    async with running(num_ingresses=2) as cluster:
        run = Run(cluster)
        for stream in range(4):
            await run.take(START, stream)
        for action, target in actions:
            await run.take(action, target)
        for stream in list(run.requests):
            await run.take(FINISH, stream)
            await run.take(RESUME, stream)
        await asyncio.wait(
            [request.reading for request in run.requests.values()] or [asyncio.create_task(_barrier(None))]
        )
        for stream, request in run.requests.items():
            produced = run.produced[stream]
            assert request.got == produced[: len(request.got)]
            if stream not in run.left | run.orphaned and request.error is None:
                assert (request.got, request.finished) == (produced, True)
            if isinstance(request.error, WorkerUnreachable):
                assert stream in run.orphaned
        assert (cluster.engine.sinks, num_open(cluster.streams)) == ({}, 0)


async def test_stream_that_fails_in_a_way_that_nobody_here_knows_does_not_wait_for_ever() -> None:
    """Its worker may be of a newer version."""
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        request = Request("r", ingress)
        await cluster.settle()
        (writer,) = cluster.streams._writers.values()
        (stream,) = writer.streams
        writer._connection.post(STREAM_FAILED, StreamFailed(stream, ErrorMessage("OfANewerVersion", ["no"])))
        async with asyncio.timeout(5):
            await request.reading
        assert type(request.error) is ServingError


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=25), st.integers(0, 12))
@settings(max_examples=25, deadline=None)
def test_every_token_is_read_or_counted_as_unread(steps: list[tuple[int, int]], holds_up_at: int) -> None:
    """Whatever readers do: take all, leave at once, lag too far, or are paused."""

    async def run() -> None:
        async with running() as cluster:
            (ingress,) = cluster.ingresses
            requests = [Request(f"r{number}", ingress) for number in range(3)]
            await cluster.settle()
            num_sent = 0
            for at, (which, what) in enumerate(steps):
                request = requests[which]
                if at == holds_up_at:
                    request.may_read.clear()
                if what == 0:
                    await request.leave()
                elif what == 1:
                    ingress.reader.pause(ingress.connection, request.id)
                elif request.id in cluster.engine.sinks:  # also one that has left, and whose end is on its way
                    num_sent += what
                    cluster.engine.step({request.id: TokenDelta(0, [at] * what)})
                if what % 2:
                    await cluster.settle()
            for request in requests:
                request.may_read.set()
            await cluster.settle()
            for request in requests:
                await request.leave()
            await cluster.settle()
            num_read = sum(len(request.got) for request in requests)
            assert num_read + ingress.unread.of(WorkerId("d0")) == num_sent

    asyncio.run(run())


async def test_tokens_that_wait_for_a_reader_that_leaves_are_unread() -> None:
    async with running() as cluster:
        (ingress,) = cluster.ingresses
        request = Request("r", ingress)
        await cluster.settle()
        request.may_read.clear()
        for number in range(3):
            cluster.engine.step({request.id: token(number)})
            await cluster.settle()
        await request.leave()
        assert (request.got, ingress.unread.of(WorkerId("d0"))) == ([0], 2)
        cluster.engine.step({request.id: token(9)})  # its end is on its way
        await cluster.settle()
        assert ingress.unread.of(WorkerId("d0")) == 3
