"""The decode side of the handoff, with an engine and a prefill worker that do what a test says."""

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client import REGISTRY

from cluster.errors import ServingError, WorkerBusy, WorkerUnreachable
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.reports import TransferSample
from cluster.step_stream.buffer import DeltaSink, TokenBuffer
from decode import kv_puller as puller_module
from decode.kv_puller import KVPuller
from kvtransfer.handoff import KVHandoff
from kvtransfer.lease_terms import Promise, Refusal
from kvtransfer.telemetry import Pull

R = RequestId("r")
REQUEST = GenerateRequest(request_id=R, prompt_token_ids=[5, 6, 7], sampling_params=b"")
PARAMS = {
    "remote_engine_id": "e",
    "remote_request_id": "lease",
    "remote_host": "h",
    "remote_port": 1,
    "remote_block_ids": [[1]],
    "remote_num_tokens": 3,
}
HANDOFF = KVHandoff.from_engine(WorkerId("p"), PARAMS)
INTERVAL_S = 0.02


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puller_module, "WATCH_INTERVAL_S", INTERVAL_S)
    monkeypatch.setattr(puller_module, "EXTEND_TIMEOUT_S", 0.1)
    monkeypatch.setattr(puller_module, "REDEEM_TIMEOUT_S", 0.1)


class PullingEngine:
    def __init__(self) -> None:
        self.started: list[KVHandoff | None] = []
        self.deadlines: list[float] = []
        self.sinks: dict[RequestId, DeltaSink] = {}
        self.computing = asyncio.Event()
        """A request was started without a handoff."""
        self.num_stopped = 0
        self.reading_s = 0.0
        self.pulled_in_s: float | None = None
        self.pull: Pull | None = None
        self.refusal: Exception | None = None
        self.renewal_error: Exception | None = None

    async def start(
        self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink, pull_deadline: float = 0.0
    ) -> None:
        self.started.append(handoff)
        self.deadlines.append(pull_deadline)
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.sinks[request.request_id] = sink
        if handoff is None:
            self.computing.set()

    async def stop(self, request_id: RequestId) -> None:
        self.num_stopped += self.sinks.pop(request_id, None) is not None

    async def renew_pulls(self, deadlines: dict[RequestId, float]) -> dict[RequestId, float]:
        self.deadlines += deadlines.values()
        if self.renewal_error is not None and puller_module.NEVER not in deadlines.values():
            raise self.renewal_error
        return dict.fromkeys(deadlines, self.reading_s)

    def pull_of(self, request_id: RequestId) -> Pull | None:
        return self.pull if self.pulled_in_s is None else Pull(self.pulled_in_s)

    def finish(self, sources: PromptTokenSources | None = None) -> None:
        self.sinks.pop(R).put(TokenDelta(0, [9], FinishReason.STOP, prompt_sources=sources))


class PrefillWorker:
    """Its answers; None: it says nothing."""

    def __init__(self) -> None:
        self.redeemed: Promise | Refusal | Exception | None = Promise(4.0)
        self.extended: Promise | Refusal | Exception | None = Promise(4.0)
        self.asked = asyncio.Event()
        self.num_extended = 0
        self.extended_once, self.extended_twice = asyncio.Event(), asyncio.Event()
        self.given_back: list[KVHandoff] = []

    async def redeem(self, handoff: KVHandoff, decode: WorkerId, digest: bytes) -> Promise | Refusal:
        assert digest == HANDOFF.digest_of(REQUEST.prompt_token_ids)
        self.asked.set()
        return await said(self.redeemed)

    async def extend(self, handoff: KVHandoff, decode: WorkerId) -> Promise | Refusal:
        self.num_extended += 1
        self.extended_once.set()
        if self.num_extended == 2:
            self.extended_twice.set()
        return await said(self.extended)

    def give_back(self, handoff: KVHandoff, decode: WorkerId) -> None:
        self.given_back.append(handoff)


async def said(answer: Promise | Refusal | Exception | None) -> Promise | Refusal:
    if answer is None:
        await asyncio.Event().wait()
    if isinstance(answer, Exception):
        raise answer
    assert answer is not None
    return answer


class Worker:
    def __init__(self) -> None:
        self.engine, self.lender, self.suspects = PullingEngine(), PrefillWorker(), list[WorkerId]()
        self.puller = KVPuller(self.engine, self.lender, WorkerId("d"), 5.0, self.suspects.append)
        self.buffer = TokenBuffer(1)

    async def start(self, handoff: KVHandoff | None = HANDOFF) -> None:
        await self.puller.start(REQUEST, handoff, self.buffer)

    async def token(self) -> int:
        (delta,) = await asyncio.wait_for(self.buffer.next(), 5)
        (token,) = delta.token_ids
        return token


def num_failures(reason: str) -> float:
    """Handoffs of this process after which the prompt was computed, by why."""
    return REGISTRY.get_sample_value("baton_transfer_failures_total", {"reason": reason}) or 0.0


async def test_first_token_says_what_the_handoff_took_part_by_part() -> None:
    worker = Worker()
    now = asyncio.get_running_loop().time()
    worker.buffer = TokenBuffer(1, received_at=now)
    worker.engine.pull = Pull(0.5, now + 1.0, connect_s=0.2, post_s=0.1, transfer_s=0.3, num_bytes=6_000_000)
    await worker.start()
    worker.engine.finish(PromptTokenSources(0, 0, 3))
    (delta,) = await worker.buffer.next()
    promise, *pull = delta.stages or ()
    assert (promise.name, promise.start_s < promise.end_s, promise.notes) == ("promise", True, {})
    assert [stage.name for stage in pull] == ["pull_connect", "pull_post", "pull_transfer", "pull_notice"]
    begins = [0.3, 0.5, 0.6, 0.9, 1.0]
    assert [stage.start_s for stage in pull] + [pull[-1].end_s] == pytest.approx(begins)
    assert pull[2].notes == {"bytes": 6_000_000, "gb_per_s": 0.02}


async def test_first_token_says_that_a_promise_was_refused() -> None:
    worker = Worker()
    worker.lender.redeemed = Refusal("over")
    await worker.start()
    stages = worker.buffer.stages.take()
    assert [(stage.name, stage.notes) for stage in stages] == [("promise", {"why": "refused"})]


async def test_promised_blocks_are_pulled_until_the_promise_ends() -> None:
    worker = Worker()
    asked_at = asyncio.get_running_loop().time()
    await worker.start()
    assert worker.engine.started == [HANDOFF]
    assert asked_at + 4.0 <= worker.engine.deadlines[0] < asked_at + 4.5
    worker.engine.finish()
    assert await worker.token() == 9
    await asyncio.sleep(3 * INTERVAL_S)
    assert worker.lender.num_extended == 0


async def test_pull_is_a_sample_of_its_link() -> None:
    worker = Worker()
    worker.engine.pulled_in_s = 0.02
    await worker.start()
    worker.engine.finish(PromptTokenSources(computed=1, local=0, pulled=700))
    assert await worker.token() == 9
    assert worker.puller.take_samples() == [TransferSample(WorkerId("p"), 700, 0.02)]
    assert worker.puller.take_samples() == []


@pytest.mark.parametrize("sources", [PromptTokenSources(1, 0, 3), PromptTokenSources(4, 0, 0)], ids=str)
async def test_pull_that_failed_in_the_engine_is_given_back_and_its_link_doubted(
    sources: PromptTokenSources, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker, before = Worker(), num_failures("read_failed")
    await worker.start()
    worker.engine.finish(sources)
    assert await worker.token() == 9
    assert (worker.lender.given_back, worker.suspects) == ([HANDOFF], ["p"])
    assert worker.puller.take_samples() == []
    assert "the pull from p failed" in caplog.text
    assert num_failures("read_failed") == before + 1


async def test_pull_that_was_only_late_says_nothing_of_its_link() -> None:
    worker = Worker()
    worker.lender.redeemed = Promise(0.01)
    await worker.start()
    await asyncio.sleep(0.02)
    worker.engine.finish(PromptTokenSources(4, 0, 0))
    assert await worker.token() == 9
    assert (worker.lender.given_back, worker.suspects) == ([HANDOFF], [])


async def test_handoff_found_in_the_engines_own_cache_is_neither_failure_nor_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker()
    await worker.start()
    worker.engine.finish(PromptTokenSources(computed=1, local=3, pulled=0))
    assert await worker.token() == 9
    assert (worker.lender.given_back, worker.suspects, worker.puller.take_samples()) == ([], [], [])
    assert caplog.text == ""


async def test_request_without_a_handoff_asks_nobody() -> None:
    worker = Worker()
    await worker.start(None)
    assert (worker.engine.started, worker.lender.asked.is_set()) == ([None], False)


@pytest.mark.parametrize(
    ("answer", "suspects", "reason"),
    [
        (Refusal("the handoff has been used"), [], "refused"),
        (WorkerUnreachable("worker p is gone", "p"), ["p"], "unreachable"),
        (None, ["p"], "unreachable"),
    ],
    ids=["refused", "gone", "silent"],
)
async def test_nothing_is_pulled_without_a_promise(
    answer: Refusal | WorkerUnreachable | None, suspects: list[Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker, before = Worker(), num_failures(reason)
    worker.lender.redeemed = answer
    await worker.start()
    assert (worker.engine.started, worker.suspects) == ([None], suspects)
    assert worker.lender.given_back == [HANDOFF] * len(suspects)
    assert num_failures(reason) == before + 1
    assert "computed here" in caplog.text


async def test_promise_is_extended_while_the_pull_waits_for_its_turn() -> None:
    worker = Worker()
    await worker.start()
    await asyncio.wait_for(worker.lender.extended_twice.wait(), 5)
    worker.engine.finish()
    assert await worker.token() == 9
    assert worker.engine.started == [HANDOFF]
    assert worker.engine.deadlines == sorted(worker.engine.deadlines)
    assert len(worker.engine.deadlines) >= 2


SHORT = Promise(3 * INTERVAL_S)


@pytest.mark.parametrize(
    ("promised", "extended", "reading_s", "suspects", "reason"),
    [
        (SHORT, None, 0.0, ["p"], "unreachable"),
        (Promise(4.0), WorkerUnreachable("worker p is gone", "p"), 0.0, ["p"], "unreachable"),
        (Promise(4.0), Promise(4.0), 5.1, ["p"], "too_slow"),
        (Promise(4.0), Refusal("no"), 5.1, ["p"], "too_slow"),
        (SHORT, Refusal("no"), 0.0, [], "promise_ended"),
    ],
    ids=["silent to the end", "gone", "the read hangs", "refused, and the read hangs", "refused to the end"],
)
async def test_pull_that_does_not_come_is_given_up_and_the_prompt_computed(
    promised: Promise,
    extended: WorkerUnreachable | Promise | Refusal | None,
    reading_s: float,
    suspects: list[Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker, before = Worker(), num_failures(reason)
    worker.lender.redeemed, worker.lender.extended, worker.engine.reading_s = promised, extended, reading_s
    await worker.start()
    await asyncio.wait_for(worker.engine.computing.wait(), 5)
    assert (worker.engine.started, worker.engine.num_stopped) == ([HANDOFF, None], 1)
    assert worker.engine.deadlines[-2:] == [puller_module.NEVER, 0.0]
    worker.engine.finish(PromptTokenSources(computed=4, local=0, pulled=0))
    assert await worker.token() == 9
    assert (worker.suspects, worker.lender.given_back) == (suspects, [HANDOFF])
    assert "computed here after all" in caplog.text
    assert num_failures(reason) == before + 1


@pytest.mark.parametrize(
    "extended", [Refusal("the lease is over, or another worker's"), None], ids=["refused", "silent for a moment"]
)
async def test_promise_that_is_not_extended_still_holds(extended: Refusal | None) -> None:
    worker = Worker()
    worker.lender.extended = extended
    await worker.start()
    await asyncio.wait_for(worker.lender.extended_twice.wait(), 5)
    assert (worker.engine.started, worker.suspects) == ([HANDOFF], [])
    worker.engine.finish()
    assert await worker.token() == 9


async def test_watch_survives_an_engine_that_does_not_answer_it(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    worker.lender.redeemed = worker.lender.extended = SHORT
    worker.engine.renewal_error = ServingError("busy")
    await worker.start()
    await asyncio.wait_for(worker.lender.extended_twice.wait(), 5)
    worker.lender.extended = Refusal("no")
    await asyncio.wait_for(worker.engine.computing.wait(), 5)
    assert "not looked after" in caplog.text


async def test_engine_that_cannot_compute_either_ends_the_request() -> None:
    worker = Worker()
    worker.lender.redeemed, worker.lender.extended = SHORT, None
    await worker.start()
    worker.engine.refusal = WorkerBusy("full", "d")
    with pytest.raises(WorkerBusy):
        await worker.token()


async def test_handoff_that_the_engine_refuses_is_given_back() -> None:
    worker = Worker()
    worker.engine.refusal = WorkerBusy("full", "d")
    with pytest.raises(ServingError):
        await worker.start()
    assert worker.lender.given_back == [HANDOFF]


async def test_client_that_leaves_while_the_handoff_is_redeemed_gives_it_back() -> None:
    worker = Worker()
    worker.lender.redeemed = None
    starting = asyncio.create_task(worker.start())
    await worker.lender.asked.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert (worker.lender.given_back, worker.engine.started) == ([HANDOFF], [])


async def test_request_that_is_stopped_is_neither_extended_nor_started_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    worker = Worker()
    worker.lender.extended = None
    await worker.start()
    await worker.lender.extended_once.wait()
    await worker.puller.stop(R)
    await asyncio.sleep(0.2)
    assert (worker.engine.started, worker.engine.num_stopped) == ([HANDOFF], 1)
    assert caplog.text == ""
