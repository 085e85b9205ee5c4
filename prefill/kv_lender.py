"""The prefill side of the handoff: computes prompts, keeps their KV blocks for as long as their leases run, and frees
blocks that no decode worker will read.

What each lease may do is decided in prefill/lease_table.py. The engine that holds the blocks frees them, so that
freeing does not depend on decode workers, which may be gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from functools import partial

from cluster.engine.port import LendingEngine
from cluster.errors import ServingError
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import RequestId
from cluster.metrics.engines import UNCLAIMED_TOKENS
from cluster.metrics.handoffs import LEASE_RELEASE, LEASES_ENDED, LEASES_OPEN
from cluster.rpc.connection import Connection, Service
from cluster.rpc.protocol import EXTEND, GIVE_BACK, PREFILL, REDEEM, WITHDRAW, LeaseClaim, Redeem
from kvtransfer.handoff import PrefillResult
from kvtransfer.lease_terms import PROMISE_S, LeaseEnd, LeaseId, Promise, Refusal, engine_lease_s
from prefill.lease_table import Leases, LeaseState

logger = logging.getLogger("baton.lender")

SWEEP_S = 0.25
"""Seconds between two looks for leases that have run out. Longer keeps KV blocks for longer; shorter costs CPU."""
ENGINE_MARGIN_S = 30.0
"""Seconds that the engine's own lease is kept ahead of the promises. The engine learns of an extension between two
steps, which may be long, and a promise is only extended if the engine's own lease outlasts it. Shorter breaks promises
when steps are long; longer keeps the blocks of a worker that died for longer.
"""
CONFIRM_INTERVAL_S = 1.0
"""Seconds between two looks for engine leases that must be extended. Longer eats into ENGINE_MARGIN_S; shorter calls
the engine more often.
"""


class KVLender:
    """Serves prefills and leases to the other processes."""

    def __init__(self, engine: LendingEngine, service: Service, offer_s: float) -> None:
        """`offer_s`: seconds for which KV blocks are kept that no decode worker asks for."""
        self._engine = engine
        self._leases = Leases(offer_s, PROMISE_S)
        self._engine_lease_s = engine_lease_s(offer_s)
        self._engine_keeps_until: dict[LeaseId, float] = {}
        self._confirming: asyncio.Future[None] | None = None
        self._confirmed_at = 0.0
        self._unwanted_since: dict[LeaseId, float] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        for state in LeaseState:  # counted when metrics are collected
            LEASES_OPEN.labels(state).set_function(partial(self._leases.count, state))
        service.on_call_of(PREFILL, self._prefill)
        service.on_call(REDEEM, self._redeem)
        service.on_call(EXTEND, self._extend)
        service.on_post(WITHDRAW, self._withdraw)
        service.on_post(GIVE_BACK, self._give_back)
        service.when_closed(lambda connection: self._end(self._leases.holder_gone(connection)))

    @property
    def num_leases(self) -> int:
        """Leases whose KV blocks this worker keeps."""
        return len(self._leases)

    def on_ended(self, ended: list[tuple[LeaseId, LeaseEnd]]) -> None:
        """The engine has freed the blocks of these leases."""
        for lease, how in ended:
            if (cause := self._leases.ended(lease, how)) is not None:
                LEASES_ENDED.labels(cause).inc()
            self._engine_keeps_until.pop(lease, None)
            if (since := self._unwanted_since.pop(lease, None)) is not None:
                LEASE_RELEASE.observe(_now() - since)
        if not self._leases and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def drained(self) -> None:
        """Wait until no lease is open."""
        while self._leases:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    async def _prefill(self, connection: Connection, request: GenerateRequest) -> PrefillResult | None:
        # Shielded: a prefill that finishes while its caller leaves has blocks that must be freed.
        prefilling = asyncio.ensure_future(self._engine.prefill(request))
        try:
            prefilled = await asyncio.shield(prefilling)
        except asyncio.CancelledError:
            self._spawn(self._abandon(connection, request, prefilling))
            raise
        return self._grant(connection, request, prefilled) if prefilled else None

    def _grant(
        self, connection: Connection, request: GenerateRequest, prefilled: tuple[PrefillResult, float]
    ) -> PrefillResult:
        result, kept_since = prefilled
        if request.is_probe:
            UNCLAIMED_TOKENS.labels("probe").inc(len(result.first.token_ids))
        handoff = result.handoff
        assert handoff is not None
        digest = handoff.digest_of(request.prompt_token_ids)
        self._leases.grant(handoff.lease, request.request_id, digest, connection, kept_since)
        self._engine_keeps_until[handoff.lease] = kept_since + self._engine_lease_s
        self._sweep_later()
        if request.is_resumable and result.first.finish_reason is not None:
            self._end(self._leases.give_back(handoff.lease, connection))
            return PrefillResult(handoff=None, first=result.first)
        return result

    async def _abandon(
        self,
        connection: Connection,
        request: GenerateRequest,
        prefilling: Awaitable[tuple[PrefillResult, float] | None],
    ) -> None:
        try:
            await self._engine.abort(request.request_id)
            if prefilled := await prefilling:
                if not request.is_probe:
                    UNCLAIMED_TOKENS.labels("abandoned").inc(len(prefilled[0].first.token_ids))
                self._grant(connection, request, prefilled)
                self._end(self._leases.withdraw(request.request_id, connection))
        except Exception as error:  # a dead engine keeps no blocks
            logger.info("prefill %s was not aborted: %s", request.request_id, error)

    async def _redeem(self, redeem: Redeem) -> Promise | Refusal:
        return self._leases.redeem(redeem.lease, redeem.digest, redeem.decode, _now())

    async def _extend(self, claim: LeaseClaim) -> Promise | Refusal:
        now = _now()
        if self._engine_keeps_until.get(claim.lease, 0.0) < now + PROMISE_S:
            return Refusal("the engine does not confirm that it keeps the blocks")
        return self._leases.extend(claim.lease, claim.decode, now)

    def _withdraw(self, connection: Connection, request_id: RequestId) -> None:
        self._end(self._leases.withdraw(request_id, connection))

    def _give_back(self, connection: Connection, claim: LeaseClaim) -> None:
        self._end(self._leases.give_back(claim.lease, claim.decode))

    def _sweep_later(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        now = _now()
        self._end(self._leases.expire(now))
        if now - self._confirmed_at >= CONFIRM_INTERVAL_S and (self._confirming is None or self._confirming.done()):
            self._confirmed_at = now
            self._confirming = self._spawn(self._confirm(now))
        if self._leases:
            self._sweep_later()

    async def _confirm(self, now: float) -> None:
        """Have the engine keep the promised blocks until well after the next call."""
        promised = [
            lease
            for lease in self._leases.redeemed()
            if self._engine_keeps_until.get(lease, 0.0) < now + ENGINE_MARGIN_S
        ]
        if not promised:
            return
        with suppress(ServingError):  # not confirmed
            for lease in await self._engine.extend_leases(promised, 2 * ENGINE_MARGIN_S):
                if lease in self._engine_keeps_until:
                    self._engine_keeps_until[lease] = now + 2 * ENGINE_MARGIN_S

    def _end(self, leases: list[LeaseId]) -> None:
        if leases:
            self._unwanted_since |= dict.fromkeys(leases, _now())
            self._spawn(self._end_in_engine(leases))

    async def _end_in_engine(self, leases: list[LeaseId]) -> None:
        with suppress(ServingError):  # a dead engine keeps no blocks
            over = await self._engine.end_leases(leases)
            self.on_ended([(lease, LeaseEnd.RELEASED) for lease in over])

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _now() -> float:
    return asyncio.get_running_loop().time()
