"""One request's life: place it, prefill, hand over, decode, close. The only place that retries and the only one that
closes.

The ladder on failure: another placement without the worker that failed (another prefill worker, then path D, then
another decode worker, then path P), then refusal. It ends with the first released token, except for a resumable
request: that goes on where it stood, with what it has generated as part of the prompt. A request whose first token has
not come in time is refused, and one that MAX_ENGINES_LOST engines were lost with is ended for good.

Invariants: every session is closed exactly once, whatever happens to the client or the workers; a granted handoff is
either given to one decode worker or withdrawn.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from typing import TypeVar

import msgspec

from cluster.errors import (
    ClientTooSlow,
    EngineLost,
    GenerationFailed,
    HandoffMismatch,
    Overloaded,
    PrefillFailed,
    RequestQuarantined,
    ServingError,
    TooManyRequests,
    WorkerFailed,
    WorkerUnreachable,
)
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Outcome, Path, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import (
    EngineLostWith,
    FirstToken,
    PairSuspected,
    PrefillDone,
    RequestClosed,
    WorkerLost,
)
from kvtransfer import verify
from kvtransfer.handoff import KVHandoff, PrefillResult
from router.quarantine.quarantine import MAX_ENGINES_LOST
from router.quarantine.request_digest import digest_of
from router.session.deadline import Deadline, now
from router.session.handoff_check import HandoffCheck
from router.session.ports import DecodePort, PrefillPort, SchedulerPort
from router.session.receipt import RequestObserver, RouteReceipt, Terms
from router.session.timing import Timing

T = TypeVar("T")

logger = logging.getLogger("baton.session")

RETRY_AFTER_S = 10.0
"""For a request whose first token did not come in time: the queues that it waited in are long."""


class SessionPorts(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: SchedulerPort
    prefill: PrefillPort
    decode: DecodePort
    observer: RequestObserver


class Session:
    def __init__(
        self,
        request: GenerateRequest,
        ports: SessionPorts,
        terms: Terms | None = None,
        *,
        first_token_timeout_s: float,
        verifies: bool = False,
    ) -> None:
        """`verifies`: check its handoff, if it has one and can be checked, before anything that depends on it is
        released.
        """
        self._request = request
        self._ports = ports
        self._terms = terms or Terms()
        self._timing = Timing(now() if self._terms.arrived_at is None else self._terms.arrived_at)
        self._verifies = verifies and request.is_verifiable
        self._deadline = Deadline(first_token_timeout_s)
        self._excluded: frozenset[WorkerId] = frozenset()
        """Workers that failed it."""
        self._lost: frozenset[WorkerId] = frozenset()
        """Of these, the ones that died, hung or could not be reached."""
        self._engines_lost: list[WorkerId] = []
        """Workers whose engine died or hung while it had the request."""
        self._num_engines_lost = 0
        """The same in number, with those that were lost before with requests of its digest."""
        self._error: str | None = None
        """Code or kind of the error that it failed with."""
        self._digest = digest_of(request, self._terms.block_hashes)
        self._placement: Placement | None = None
        self._is_charged = False
        """The Scheduler may have charged the request, even if its answer never came."""
        self._asked: tuple[WorkerId, RequestId] | None = None
        """The prefill worker that may hold a handoff which no decode worker has redeemed."""
        self._num_attempts = 0
        self._released: list[int] = []
        """Of a resumable request: the tokens that the client has been given."""
        self._num_output_tokens = 0
        self._prefill_sources: PromptTokenSources | None = None
        self._sources: PromptTokenSources | None = None

    @property
    def placement(self) -> Placement | None:
        """Where the request runs now."""
        return self._placement

    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        """Yield the request's token deltas, in order per sequence.

        Raises:
            Overloaded: no worker can take the request (TooManyRequests: for their load), or none gave a token in time.
            InvalidRequest: the engine refused it.
            ClientTooSlow: whoever reads this lags too far behind.
            RequestQuarantined: engines were lost with it.
            ServingError: no worker was left to try, or to go on with what had been released.
        """
        outcome = Outcome.FAILED
        try:
            async with aclosing(self._deltas()) as deltas:
                async for delta in deltas:
                    self._num_output_tokens += len(delta.token_ids)
                    self._timing.released(delta, now())
                    yield delta
            outcome = Outcome.FINISHED
        except (asyncio.CancelledError, GeneratorExit, ClientTooSlow):
            outcome = Outcome.ABORTED
            raise
        except Overloaded:
            outcome = Outcome.REJECTED
            raise
        except ServingError as error:
            self._failed(error)
            raise
        finally:
            self._close(outcome)

    async def _deltas(self) -> AsyncGenerator[TokenDelta, None]:
        failure: WorkerFailed | None = None
        while True:
            placement = await self._place(failure)
            try:
                async with aclosing(self._attempt(placement)) as deltas:
                    async for delta in deltas:
                        if self._request.is_resumable:
                            self._released += delta.token_ids
                        yield delta
                return
            except WorkerFailed as error:
                failure = error
                if isinstance(failure, WorkerUnreachable):
                    self._lost |= {WorkerId(failure.worker)}
                    self._ports.scheduler.tell(WorkerLost(worker=WorkerId(failure.worker)))
                if isinstance(failure, EngineLost):
                    self._count_engine(WorkerId(failure.worker))
                if self._num_output_tokens and not self._request.is_resumable:
                    raise
                self._excluded |= {WorkerId(failure.worker)}
                if self._released:
                    logger.warning("request %s goes on elsewhere: %s", self._request.request_id, failure)

    def _count_engine(self, worker: WorkerId) -> None:
        """Raises RequestQuarantined."""
        self._engines_lost.append(worker)
        self._num_engines_lost = num_lost = self._num_engines_lost + 1
        logger.warning("engine %d was lost with request %s: %s", num_lost, self._request.request_id, worker)
        self._ports.scheduler.tell(EngineLostWith(digest=self._digest, worker=worker, num_engines_lost=num_lost))
        if num_lost >= MAX_ENGINES_LOST:
            raise RequestQuarantined(f"{num_lost} engines were lost with this request")

    async def _place(self, failure: WorkerFailed | None) -> Placement:
        """`failure`: of the attempt before."""
        self._is_charged = True
        answer = await self._in_time(self._ports.scheduler.place(self._to_place(failure)))
        if isinstance(answer, Rejection):
            if answer.is_quarantined:
                raise RequestQuarantined(answer.why)
            if self._released and failure is not None:
                raise failure
            kind = TooManyRequests if answer.is_overload else Overloaded
            raise kind(answer.why, answer.retry_after_s)
        self._placement = answer
        self._num_engines_lost = max(self._num_engines_lost, answer.num_engines_lost)
        self._num_attempts += 1
        return answer

    def _to_place(self, failure: WorkerFailed | None) -> PlacementRequest:
        request, terms = self._request, self._terms
        return PlacementRequest(
            request_id=request.request_id,
            num_prompt_tokens=len(request.prompt_token_ids) + len(self._released),
            block_hashes=terms.block_hashes,
            tenant=request.cache_salt or "",
            has_early_token=request.is_resumable,
            num_output_tokens=len(self._released),
            max_output_tokens=request.max_output_tokens,
            num_sequences=request.num_sequences,
            slo_class=terms.slo_class,
            ttft_s=terms.ttft_s,
            tpot_s=terms.tpot_s,
            age_s=self._timing.age_s(now()),
            can_hand_over=request.num_sequences == 1 and not request.needs_prompt_logprobs,
            excluded=self._excluded,
            lost=self._lost,
            num_engines_lost=self._num_engines_lost,
            digest=self._digest,
            path=terms.path if failure is None else None,
        )

    async def _attempt(self, placement: Placement) -> AsyncGenerator[TokenDelta, None]:
        request = self._next_request(placement)
        prefilled, check, held = None, None, None
        try:
            if placement.prefill is not None and placement.decode is not None:
                prefilled = await self._in_time(self._prefill(placement.prefill, request))
                self._ports.scheduler.tell(PrefillDone(request_id=self._request.request_id))
                if request.is_resumable and prefilled.follows(len(request.prompt_token_ids)):
                    held = self._as_released(prefilled.first, None)
                    if prefilled.handoff is None or self._hold_s(placement) <= 0.0:
                        yield held
                        held = None
                    if prefilled.handoff is None:
                        return
                    request = request.after(prefilled.first.token_ids)
                if request.is_verified:
                    check = HandoffCheck(placement.prefill, request, prefilled, self._ports.decode)
            handoff = prefilled.handoff if prefilled else None
            async with aclosing(self._generate(placement.generating, request, handoff)) as deltas:
                if held is None:
                    first = await self._in_time(anext(deltas, None))
                else:
                    async with _running(anext(deltas, None)) as coming:
                        await asyncio.wait([coming], timeout=self._hold_s(placement))
                        yield held
                        first = await coming
                if first is None:
                    return
                self._ports.scheduler.tell(FirstToken(request_id=self._request.request_id))
                self._withdraw()  # what the decode worker has not redeemed it does not want
                if check is not None:
                    self._judge(placement, await check.distance(first))
                yield self._as_released(first, prefilled)
                async for delta in deltas:
                    yield delta
        finally:
            self._withdraw()
            if check is not None:
                check.end()

    def _hold_s(self, placement: Placement) -> float:
        """How long the prefill worker's token may still be kept back for decoding to begin."""
        return placement.holds_first_until_s - self._timing.age_s(now())

    def _next_request(self, placement: Placement) -> GenerateRequest:
        """The request as the next attempt runs it: under an id of its own, after what has been released."""
        request = self._request
        if self._num_attempts > 1:
            request = msgspec.structs.replace(
                request, request_id=RequestId(f"{request.request_id}-{self._num_attempts}")
            )
        if self._released:
            request = request.after(self._released)
        is_verified = self._verifies and placement.path is Path.PREFILL_DECODE
        is_suspect = self._num_engines_lost > 0
        if not is_verified and not is_suspect:
            return request
        return msgspec.structs.replace(request, is_verified=is_verified, is_suspect=is_suspect)

    async def _prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult:
        self._asked = (worker, request.request_id)
        result = await self._ports.prefill.prefill(worker, request)
        if result is None:
            raise PrefillFailed("the prefill ended without a handoff", worker)
        self._prefill_sources = result.first.prompt_sources
        return result

    async def _generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        async with aclosing(self._ports.decode.generate(worker, request, handoff)) as deltas:
            async for delta in deltas:
                # We abort nothing that is still read here: an engine does that as it shuts down.
                if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                    raise GenerationFailed("the engine failed on this request", worker)
                yield delta

    def _judge(self, placement: Placement, distance: float | None) -> None:
        """Raises HandoffMismatch."""
        assert placement.prefill is not None and placement.decode is not None
        if distance is None:
            return
        self._ports.observer.verified(placement.prefill, placement.decode, distance)
        if verify.agrees(distance):
            return
        logger.error(
            "wrong KV blocks: request %s read others on %s than %s computed (%.2f nats apart)",
            self._request.request_id,
            placement.decode,
            placement.prefill,
            distance,
        )
        self._ports.decode.distrust(placement.decode)
        self._ports.scheduler.tell(PairSuspected(prefill=placement.prefill, decode=placement.decode))
        raise HandoffMismatch("the handoff was wrong", placement.decode)

    def _as_released(self, first: TokenDelta, prefilled: PrefillResult | None) -> TokenDelta:
        """The first delta of a worker, as the client gets it. What it says of the prompt counts once, and as the
        prefill worker found it: what that computed is no hit, although decode did not.
        """
        sources = first.prompt_sources
        if prefilled is not None or self._placement is None or self._placement.path is not Path.PREFILL_DECODE:
            self._sources = sources
        if self._released:
            sources = None
        elif prefilled is not None and sources is not None and sources.pulled:
            sources = prefilled.first.prompt_sources
        if sources is first.prompt_sources and first.top_logprobs is None:
            return first
        return msgspec.structs.replace(first, prompt_sources=sources, top_logprobs=None)

    async def _in_time(self, awaitable: Awaitable[T]) -> T:
        """Raises Overloaded where the first token is late."""
        if self._num_output_tokens:
            return await awaitable
        try:
            return await self._deadline.within(awaitable)
        except TimeoutError as error:
            raise Overloaded("no worker gave a token in time", RETRY_AFTER_S) from error

    def _failed(self, error: ServingError) -> None:
        self._error = error.code or error.error_type
        if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            name, num = self._request.request_id, self._num_attempts
            logger.warning("request %s failed, placed %d times: %s (%s)", name, num, error, self._error)

    def _withdraw(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            self._ports.prefill.withdraw(*asked)

    def _close(self, outcome: Outcome) -> None:
        receipt = self._receipt(outcome)
        if self._is_charged:
            closed = RequestClosed(
                request_id=self._request.request_id,
                digest=self._digest,
                num_output_tokens=self._num_output_tokens if outcome is Outcome.FINISHED else None,
                num_engines_lost=len(self._engines_lost),
                ttft_s=receipt.ttft_s,
                tpot_s=receipt.tpot_s,
            )
            self._ports.scheduler.tell(closed)
        self._ports.observer.closed(receipt)

    def _receipt(self, outcome: Outcome) -> RouteReceipt:
        return RouteReceipt(
            request_id=self._request.request_id,
            outcome=outcome,
            slo_class=self._terms.slo_class,
            placement=self._placement,
            num_prompt_tokens=len(self._request.prompt_token_ids),
            num_output_tokens=self._num_output_tokens,
            num_attempts=self._num_attempts,
            ttft_s=self._timing.ttft_s,
            tpot_s=self._timing.tpot_s,
            prefill_sources=self._prefill_sources,
            sources=self._sources,
            http_request=self._terms.http_request,
            error=self._error,
            engines_lost=self._engines_lost,
        )


@asynccontextmanager
async def _running(awaitable: Awaitable[T]) -> AsyncGenerator[asyncio.Future[T], None]:
    """It runs by itself meanwhile, and no longer."""
    task = asyncio.ensure_future(awaitable)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
