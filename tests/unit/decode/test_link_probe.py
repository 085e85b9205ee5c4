import asyncio

import pytest

from cluster.errors import PrefillFailed, ServingError, WorkerUnreachable
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources
from cluster.messages.ids import RequestId, WorkerId
from cluster.step_stream.buffer import DeltaSink
from decode.link_probe import NUM_LARGE, NUM_SMALL, SMALL_BLOCKS, LinkProbe
from kvtransfer.handoff import KVHandoff, PrefillResult
from kvtransfer.telemetry import TransferLog
from tests.expected import present
from tests.unit.factories import a_delta, a_handoff, a_prefill_result, a_request
from tests.unit.fake_ports import Gate

PREFILL, DECODE = WorkerId("p0"), WorkerId("d0")
BLOCK_TOKENS, BLOCK_BYTES, LARGEST_BLOCKS = 4, 1000, 10
LATENCY_S, BYTES_PER_S = 0.002, 1e6


class FakeEngine:
    """Pulls at a known speed, in `num_processes` processes side by side. The puller, too."""

    def __init__(self) -> None:
        self.transfers = TransferLog()
        self.largest_probe_blocks = LARGEST_BLOCKS
        self.num_processes = 1
        self.pulled = True
        self.start_error: ServingError | None = None
        self.gate = Gate()
        self.running: set[RequestId] = set()
        self.started: list[GenerateRequest] = []

    def probe_request(self, request_id: RequestId, num_blocks: int) -> GenerateRequest:
        return a_request(request_id, prompt_token_ids=[0] * num_blocks * BLOCK_TOKENS)

    async def start(self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink) -> None:
        self.started.append(request)
        self.running.add(request.request_id)
        await self.gate.passed()
        if self.start_error is not None:
            raise self.start_error
        num_tokens = len(request.prompt_token_ids)
        if self.pulled:
            self._record(num_tokens // BLOCK_TOKENS * BLOCK_BYTES)
        sources = PromptTokenSources(0, 0, num_tokens) if self.pulled else PromptTokenSources(num_tokens, 0, 0)
        sink.put(a_delta(7, finish=FinishReason.LENGTH, sources=sources))

    async def stop(self, request_id: RequestId) -> None:
        self.running.discard(request_id)

    def _record(self, num_bytes: int) -> None:
        share = num_bytes // self.num_processes
        durations_s = [LATENCY_S + num_bytes / BYTES_PER_S] * self.num_processes
        self.transfers.record({"transfer_duration": durations_s, "bytes_transferred": [share] * self.num_processes})


class FakePrefill:
    def __init__(self) -> None:
        self.result: PrefillResult | None = a_prefill_result("granted")
        self.error: ServingError | None = None
        self.gate = Gate()
        self.asked: list[RequestId] = []
        self.withdrawn: list[RequestId] = []
        self.given_back: list[KVHandoff] = []

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        self.asked.append(request.request_id)
        await self.gate.passed()
        if self.error is not None:
            raise self.error
        return self.result

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        self.withdrawn.append(request_id)

    def give_back(self, handoff: KVHandoff, decode: WorkerId) -> None:
        self.given_back.append(handoff)


class Pair:
    def __init__(self) -> None:
        self.engine, self.prefill = FakeEngine(), FakePrefill()
        self.probe = LinkProbe(DECODE, self.engine, self.engine, self.prefill)

    async def cancelled_at(self, gate: Gate) -> None:
        gate.hold()
        proof = asyncio.ensure_future(self.probe.prove(PREFILL))
        await gate.reached.wait()
        proof.cancel()
        with pytest.raises(asyncio.CancelledError):
            await proof


@pytest.fixture
def pair() -> Pair:
    return Pair()


async def test_proof_is_one_small_handoff(pair: Pair) -> None:
    await pair.probe.prove(PREFILL)
    (request,) = pair.engine.started
    assert len(request.prompt_token_ids) == SMALL_BLOCKS * BLOCK_TOKENS
    assert (pair.engine.running, pair.prefill.given_back) == (set(), [])


@pytest.mark.parametrize("num_processes", [1, 2])
async def test_measurement_finds_the_speed_of_the_engine_as_a_whole(pair: Pair, num_processes: int) -> None:
    pair.engine.num_processes = num_processes
    speed = present(await pair.probe.measure(PREFILL))
    assert (speed.latency_s, speed.bytes_per_s) == pytest.approx((LATENCY_S, BYTES_PER_S))
    sizes = [len(request.prompt_token_ids) // BLOCK_TOKENS for request in pair.engine.started]
    assert sorted(sizes) == [SMALL_BLOCKS] * NUM_SMALL + [LARGEST_BLOCKS] * NUM_LARGE


async def test_no_two_handoffs_have_a_prompt_in_common(pair: Pair) -> None:
    await pair.probe.prove(PREFILL)
    await pair.probe.measure(PREFILL)
    assert len(set(pair.prefill.asked)) == len(pair.prefill.asked) == 1 + NUM_SMALL + NUM_LARGE


async def test_engine_that_says_nothing_of_its_transfers_has_no_speed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.engine, "_record", lambda num_bytes: None)
    assert await pair.probe.measure(PREFILL) is None


async def test_prefill_without_a_handoff_proves_nothing(pair: Pair) -> None:
    pair.prefill.result = None
    with pytest.raises(PrefillFailed, match="prefill worker p0 gave no handoff"):
        await pair.probe.prove(PREFILL)
    assert (pair.engine.started, pair.prefill.given_back) == ([], [])


async def test_prompt_that_decode_computed_itself_proves_nothing(pair: Pair) -> None:
    pair.engine.pulled = False
    with pytest.raises(PrefillFailed, match="nothing was pulled from prefill worker p0"):
        await pair.probe.prove(PREFILL)
    assert pair.prefill.given_back == [a_handoff("granted")]


async def test_handoff_that_cannot_be_started_is_given_back(pair: Pair) -> None:
    pair.engine.start_error = ServingError("too many requests")
    with pytest.raises(ServingError, match="too many requests"):
        await pair.probe.prove(PREFILL)
    assert (pair.engine.running, pair.prefill.given_back) == (set(), [a_handoff("granted")])


async def test_pull_that_is_given_up_is_stopped_and_given_back(pair: Pair) -> None:
    await pair.cancelled_at(pair.engine.gate)
    assert (pair.engine.running, pair.prefill.given_back) == (set(), [a_handoff("granted")])


async def test_prefill_that_is_given_up_is_withdrawn(pair: Pair) -> None:
    await pair.cancelled_at(pair.prefill.gate)
    assert (pair.prefill.withdrawn, pair.engine.started) == (pair.prefill.asked, [])


async def test_prefill_that_fails_starts_nothing(pair: Pair) -> None:
    pair.prefill.error = WorkerUnreachable("worker p0 is gone", "p0")
    with pytest.raises(WorkerUnreachable):
        await pair.probe.prove(PREFILL)
    assert pair.engine.started == []
