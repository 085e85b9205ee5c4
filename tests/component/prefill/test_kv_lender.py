"""The prefill side of the handoff over real sockets, with an engine that prefills and frees when the test says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest

from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import RequestId, WorkerId
from cluster.metrics.handoffs import LEASES_ENDED
from cluster.rpc.connection import Connection, Service
from cluster.rpc.frames import Method
from cluster.rpc.listener import Listener, connect
from cluster.rpc.protocol import EXTEND, GIVE_BACK, PREFILL, REDEEM, WITHDRAW, LeaseClaim, Redeem
from kvtransfer.handoff import KVHandoff, PrefillResult, prompt_digest
from kvtransfer.lease_terms import PROMISE_S, LeaseEnd, LeaseId, Promise, Refusal
from prefill import kv_lender as lender_module
from prefill.kv_lender import KVLender
from tests.expected import present

PROMPT = [5, 6, 7]
REQUEST = GenerateRequest(request_id=RequestId("r"), prompt_token_ids=PROMPT, sampling_params=b"")
RESUMABLE = GenerateRequest(request_id=RequestId("r"), prompt_token_ids=PROMPT, sampling_params=b"", is_resumable=True)
LEASE, DIGEST, DECODE = LeaseId("r-internal"), prompt_digest(PROMPT), WorkerId("d")
REDEMPTION, CLAIM = Redeem(LEASE, DECODE, DIGEST), LeaseClaim(LEASE, DECODE)


class LendingEngine:
    """Frees at once what it is told to, as its report says later."""

    def __init__(self) -> None:
        self.may_prefill = asyncio.Event()
        self.may_prefill.set()
        self.prefilling = asyncio.Event()
        self.aborted = asyncio.Event()
        self.abort_comes_too_late = False
        self.finish: FinishReason | None = None
        self.kept: set[LeaseId] = set()
        self.freed = asyncio.Event()
        self.hangs = self.loses_reports = False
        self.num_extended = 0
        self.lender: KVLender | None = None

    async def prefill(self, request: GenerateRequest) -> tuple[PrefillResult, float] | None:
        self.prefilling.set()
        await self.may_prefill.wait()
        if self.aborted.is_set() and not self.abort_comes_too_late:
            return None
        self.kept.add(LEASE)
        params = {
            "remote_engine_id": "e",
            "remote_request_id": LEASE,
            "remote_host": "h",
            "remote_port": 1,
            "remote_block_ids": [[1]],
            "remote_num_tokens": len(PROMPT),
        }
        first = TokenDelta(0, [9], self.finish, prompt_sources=PromptTokenSources(3, 0, 0))
        handoff = KVHandoff.from_engine(WorkerId("p"), params)
        return PrefillResult(handoff=handoff, first=first), asyncio.get_running_loop().time()

    async def abort(self, request_id: RequestId) -> None:
        self.aborted.set()
        self.may_prefill.set()

    async def end_leases(self, leases: list[LeaseId]) -> list[LeaseId]:
        if self.loses_reports:
            self.freed.set()
            return leases
        for lease in leases:
            self.end(lease, LeaseEnd.RELEASED)
        return []

    async def extend_leases(self, leases: list[LeaseId], seconds: float) -> list[LeaseId]:
        if self.hangs:
            await asyncio.Event().wait()
        self.num_extended += 1
        return [lease for lease in leases if lease in self.kept]

    def end(self, lease: LeaseId, how: LeaseEnd) -> None:
        assert self.lender is not None
        self.kept.discard(lease)
        self.lender.on_ended([(lease, how)])
        self.freed.set()


A = TypeVar("A")


@asynccontextmanager
async def lending(offer_s: float = 30.0) -> AsyncIterator[tuple[LendingEngine, Connection, Connection]]:
    """A prefill worker, and the connections of an ingress and of a decode worker to it."""
    engine, service = LendingEngine(), Service()
    engine.lender = KVLender(engine, service, offer_s)
    listener = await Listener.start("127.0.0.1", service)
    ingress, decode = await connect(listener.address, Service()), await connect(listener.address, Service())
    try:
        yield engine, ingress, decode
        await asyncio.wait_for(engine.lender.drained(), 5)
    finally:
        for connection in (ingress, decode):
            connection.close()
        await listener.close()


async def is_refused(decode: Connection, method: Method[A, Promise | Refusal], argument: A) -> bool:
    answer = await decode.call(method, argument)
    return isinstance(answer, Refusal)


def ended(how: LeaseEnd) -> float:
    return LEASES_ENDED.labels(how)._value.get()


async def test_handoff_is_redeemed_once_and_extended_by_its_holder() -> None:
    async with lending() as (engine, ingress, decode):
        before = ended(LeaseEnd.READ)
        result = await ingress.call(PREFILL, REQUEST)
        assert result is not None and result.handoff is not None
        assert result.first.token_ids == [9]
        assert await decode.call(REDEEM, REDEMPTION) == Promise(PROMISE_S)
        assert await is_refused(decode, REDEEM, REDEMPTION)
        assert await decode.call(EXTEND, CLAIM) == Promise(PROMISE_S)
        assert await is_refused(decode, EXTEND, LeaseClaim(LEASE, WorkerId("d2")))
        ingress.post(WITHDRAW, REQUEST.request_id)
        assert await decode.call(EXTEND, CLAIM) == Promise(PROMISE_S)
        engine.end(LEASE, LeaseEnd.READ)
        assert await is_refused(decode, EXTEND, CLAIM)
        assert ended(LeaseEnd.READ) == before + 1


async def test_handoff_of_another_prompt_is_refused() -> None:
    async with lending() as (_, ingress, decode):
        await ingress.call(PREFILL, REQUEST)
        answer = await decode.call(REDEEM, Redeem(LEASE, DECODE, prompt_digest([5, 6, 8])))
        assert answer == Refusal("the handoff is of another prompt")
        ingress.post(WITHDRAW, REQUEST.request_id)


@pytest.mark.parametrize("how", ["withdrawn", "given back", "its ingress is gone"])
async def test_blocks_that_nobody_wants_are_freed_at_once(how: str) -> None:
    async with lending() as (engine, ingress, decode):
        before = ended(LeaseEnd.RELEASED)
        await ingress.call(PREFILL, REQUEST)
        match how:
            case "withdrawn":
                ingress.post(WITHDRAW, REQUEST.request_id)
            case "given back":
                decode.post(GIVE_BACK, CLAIM)
            case _:
                ingress.close()
        await asyncio.wait_for(engine.freed.wait(), 1)
        assert ended(LeaseEnd.RELEASED) == before + 1
        assert await is_refused(decode, REDEEM, REDEMPTION)


async def test_blocks_that_nobody_asks_for_are_freed_when_their_time_is_over() -> None:
    async with lending(offer_s=0.1) as (engine, ingress, _):
        before = ended(LeaseEnd.EXPIRED)
        await ingress.call(PREFILL, REQUEST)
        await asyncio.wait_for(engine.freed.wait(), 2)
        assert ended(LeaseEnd.EXPIRED) == before + 1


async def test_promise_outlives_the_connection_that_it_was_given_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lender_module, "PROMISE_S", 0.5)
    async with lending() as (engine, ingress, decode):
        await ingress.call(PREFILL, REQUEST)
        assert await decode.call(REDEEM, REDEMPTION) == Promise(0.5)
        decode.close()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.freed.wait(), 0.3)
        await asyncio.wait_for(engine.freed.wait(), 2)


@pytest.mark.parametrize("too_late", [False, True], ids=["aborted", "the abort comes too late"])
@pytest.mark.parametrize("how", ["cancelled", "gone"])
async def test_prefill_whose_caller_leaves_keeps_no_blocks(how: str, too_late: bool) -> None:
    async with lending() as (engine, ingress, _):
        engine.may_prefill.clear()
        engine.abort_comes_too_late = too_late
        call = asyncio.create_task(ingress.call(PREFILL, REQUEST))
        await engine.prefilling.wait()
        if how == "cancelled":
            call.cancel()
        else:
            ingress.close()
        await asyncio.wait_for(engine.aborted.wait(), 2)
        await asyncio.wait([call])
        if too_late:
            await asyncio.wait_for(engine.freed.wait(), 2)
        assert engine.kept == set()


@pytest.mark.parametrize(("request_", "is_kept"), [(RESUMABLE, False), (REQUEST, True)], ids=["counts", "does not"])
async def test_prefill_whose_first_token_is_the_last_one_keeps_no_blocks(
    request_: GenerateRequest, is_kept: bool
) -> None:
    async with lending() as (engine, ingress, _):
        engine.finish = FinishReason.STOP
        result = await ingress.call(PREFILL, request_)
        assert result is not None
        assert (result.first.finish_reason, result.handoff is not None) == (FinishReason.STOP, is_kept)
        if not is_kept:
            await asyncio.wait_for(engine.freed.wait(), 1)
        ingress.post(WITHDRAW, request_.request_id)


async def test_promise_is_its_holder_s_on_any_connection() -> None:
    async with lending() as (engine, ingress, decode):
        await ingress.call(PREFILL, REQUEST)
        await decode.call(REDEEM, REDEMPTION)
        decode.close()
        assert await ingress.call(EXTEND, CLAIM) == Promise(PROMISE_S)
        ingress.post(GIVE_BACK, CLAIM)
        await asyncio.wait_for(engine.freed.wait(), 1)


async def test_busy_engine_is_not_waited_for_and_a_hanging_one_is_promised_for_no_longer_than_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lender_module, "CONFIRM_INTERVAL_S", 0.0)
    async with lending(offer_s=0.0) as (engine, ingress, decode):
        engine.hangs = True
        monkeypatch.setattr(lender_module, "SWEEP_S", 0.01)
        present(engine.lender)._leases._offer_s = 30.0  # the engine's own lease is 8 s all the same
        await ingress.call(PREFILL, REQUEST)
        await decode.call(REDEEM, REDEMPTION)
        assert await asyncio.wait_for(decode.call(EXTEND, CLAIM), 1) == Promise(PROMISE_S)
        present(engine.lender)._engine_keeps_until[LEASE] -= PROMISE_S
        assert await is_refused(decode, EXTEND, CLAIM)
        engine.end(LEASE, LeaseEnd.READ)


async def test_engine_s_own_lease_is_kept_ahead_of_the_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lender_module, "SWEEP_S", 0.01)
    monkeypatch.setattr(lender_module, "CONFIRM_INTERVAL_S", 0.0)
    async with lending(offer_s=5.0) as (engine, ingress, decode):
        await ingress.call(PREFILL, REQUEST)
        await decode.call(REDEEM, REDEMPTION)
        async with asyncio.timeout(5):
            while present(engine.lender)._engine_keeps_until[LEASE] < asyncio.get_running_loop().time() + 40:
                await decode.call(EXTEND, CLAIM)
        assert engine.num_extended == 1
        engine.end(LEASE, LeaseEnd.READ)


async def test_lease_whose_end_the_engine_never_reported_is_over_all_the_same() -> None:
    async with lending() as (engine, ingress, _):
        await ingress.call(PREFILL, REQUEST)
        engine.loses_reports = True
        ingress.post(WITHDRAW, REQUEST.request_id)
        await asyncio.wait_for(engine.freed.wait(), 1)
