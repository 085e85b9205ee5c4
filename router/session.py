"""One request's life: place it, prefill, hand over, decode, close. The only place that retries and the only one that
closes.

The ladder on failure: another placement without the worker that failed (another prefill worker, then path D, then
another decode worker, then path P), then refusal. It ends with the first released token, except for a resumable
request: that goes on where it stood, with what it has generated as part of the prompt. A request whose first token has
not come in time is refused.

Invariants: every session is closed exactly once, whatever happens to the client or the workers; a granted hand-over is
either given to one decode worker or withdrawn.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing, suppress
from typing import Protocol, TypeVar

import msgspec

from cluster.errors import (
    ClientTooSlow,
    GenerationFailed,
    HandoverMismatch,
    Overloaded,
    PrefillFailed,
    ServingError,
    WorkerFailed,
    WorkerUnreachable,
)
from cluster.types import (
    FinishReason,
    GenerateRequest,
    Outcome,
    PairSuspected,
    Path,
    Placement,
    PlacementRequest,
    PromptTokenSources,
    Rejection,
    RequestClosed,
    RequestId,
    TokenDelta,
    WorkerId,
    WorkerLost,
)
from kvtransfer import verify
from kvtransfer.handoff import KVHandoff, PrefillResult
from router.deadline import Deadline
from router.handoff_check import HandoffCheck
from router.ports import DecodePort, PrefillPort, SchedulerPort
from router.prefix_memory import prefix_chain

T = TypeVar("T")

logger = logging.getLogger("baton.session")

RETRY_AFTER_S = 10.0
"""For a request whose first token did not come in time: the queues that it waited in are long."""


class RouteReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request ran and how it ended."""

    path: Path | None
    """None when it was never placed."""
    outcome: Outcome
    num_prompt_tokens: int
    num_output_tokens: int
    num_attempts: int
    """Placements that it took."""
    prefill_sources: PromptTokenSources | None
    """Of the prompt on the prefill worker of path P->D."""
    sources: PromptTokenSources | None
    """Of the prompt on the worker that generated, and of what had been generated before it took over."""


class RequestObserver(Protocol):
    def closed(self, receipt: RouteReceipt) -> None:
        """Called exactly once per session."""
        ...

    def verified(self, prefill: WorkerId, decode: WorkerId, distance: float) -> None:
        """A hand-over was checked (kvtransfer/verify.py)."""
        ...


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
        path: Path | None = None,
        *,
        block_hashes: list[bytes],
        first_token_timeout_s: float,
        verifies: bool = False,
    ) -> None:
        """`path` forces where the request runs; None lets the Scheduler decide. `block_hashes`: of the prompt's full KV
        blocks. `verifies`: check its hand-over, if it has one and can be checked, before anything that depends on it
        is released.
        """
        self._request = request
        self._ports = ports
        self._forced_path = path
        self._block_hashes = block_hashes
        self._verifies = verifies and request.is_verifiable
        self._deadline = Deadline(first_token_timeout_s)
        self._excluded: frozenset[WorkerId] = frozenset()
        self._placement: Placement | None = None
        self._is_charged = False
        """The Scheduler may have charged the request, even if its answer never came."""
        self._asked: tuple[WorkerId, RequestId] | None = None
        """The prefill worker that may hold a hand-over which no decode worker has redeemed."""
        self._num_attempts = 0
        self._released: list[int] = []
        """Of a resumable request: the tokens that the client has been given."""
        self._num_output_tokens = 0
        self._prefill_sources: PromptTokenSources | None = None
        self._sources: PromptTokenSources | None = None

    @property
    def path(self) -> Path | None:
        """Where the request runs now."""
        return self._placement.path if self._placement else None

    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        """Yield the request's token deltas, in order per sequence.

        Raises:
            Overloaded: no worker can take the request, or none gave a token in time.
            InvalidRequest: the engine refused it.
            ClientTooSlow: whoever reads this lags too far behind.
            ServingError: no worker was left to try, or to go on with what had been released.
        """
        outcome = Outcome.FAILED
        try:
            async with aclosing(self._deltas()) as deltas:
                async for delta in deltas:
                    self._num_output_tokens += len(delta.token_ids)
                    yield delta
            outcome = Outcome.FINISHED
        except (asyncio.CancelledError, GeneratorExit, ClientTooSlow):
            outcome = Outcome.ABORTED
            raise
        except Overloaded:
            outcome = Outcome.REJECTED
            raise
        finally:
            await asyncio.shield(asyncio.ensure_future(self._close(outcome)))

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
                    with suppress(ServingError):
                        await self._ports.scheduler.tell(WorkerLost(worker=WorkerId(failure.worker)))
                if self._num_output_tokens and not self._request.is_resumable:
                    raise
                self._excluded |= {WorkerId(failure.worker)}
                if self._released:
                    logger.warning("request %s goes on elsewhere: %s", self._request.request_id, failure)

    async def _place(self, failure: WorkerFailed | None) -> Placement:
        """`failure`: of the attempt before."""
        self._is_charged = True
        answer = await self._in_time(
            self._ports.scheduler.place(
                PlacementRequest(
                    request_id=self._request.request_id,
                    num_prompt_tokens=len(self._request.prompt_token_ids) + len(self._released),
                    prefix_chain=prefix_chain(self._request.prompt_token_ids),
                    block_hashes=self._block_hashes,
                    tenant=self._request.cache_salt or "",
                    can_hand_over=self._request.num_sequences == 1 and not self._request.needs_prompt_logprobs,
                    excluded=self._excluded,
                    path=self._forced_path if failure is None else None,
                )
            )
        )
        if isinstance(answer, Rejection):
            if self._released and failure is not None:
                raise failure
            raise Overloaded(answer.why, answer.retry_after_s)
        self._placement = answer
        self._num_attempts += 1
        return answer

    async def _attempt(self, placement: Placement) -> AsyncGenerator[TokenDelta, None]:
        request = self._next_request(placement)
        prefilled, check = None, None
        try:
            if placement.prefill is not None and placement.decode is not None:
                prefilled = await self._in_time(self._prefill(placement.prefill, request))
                if request.is_resumable:
                    yield self._as_released(prefilled.first, None)
                    if prefilled.handoff is None:
                        return
                    request = request.after(prefilled.first.token_ids)
                if request.is_verified:
                    check = HandoffCheck(placement.prefill, request, prefilled, self._ports.decode)
            handoff = prefilled.handoff if prefilled else None
            async with aclosing(self._generate(placement.generating, request, handoff)) as deltas:
                first = await self._in_time(anext(deltas, None))
                if first is None:
                    return
                self._withdraw()  # what the decode worker has not redeemed it does not want
                if check is not None:
                    await self._judge(placement, await check.distance(first))
                yield self._as_released(first, prefilled)
                async for delta in deltas:
                    yield delta
        finally:
            self._withdraw()
            if check is not None:
                check.end()

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
        return msgspec.structs.replace(request, is_verified=True) if is_verified else request

    async def _prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult:
        self._asked = (worker, request.request_id)
        result = await self._ports.prefill.prefill(worker, request)
        if result is None:
            raise PrefillFailed("the prefill ended without a hand-over", worker)
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

    async def _judge(self, placement: Placement, distance: float | None) -> None:
        """Raises HandoverMismatch."""
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
        with suppress(ServingError):
            await self._ports.scheduler.tell(PairSuspected(prefill=placement.prefill, decode=placement.decode))
        raise HandoverMismatch("the hand-over was wrong", placement.decode)

    def _as_released(self, first: TokenDelta, prefilled: PrefillResult | None) -> TokenDelta:
        """The first delta of a worker, as the client gets it. What it says of the prompt counts once, and as the
        prefill worker found it: what that computed is no hit, although decode did not.
        """
        sources = first.prompt_sources
        if prefilled is not None or self.path is not Path.PREFILL_DECODE:
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

    def _withdraw(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            self._ports.prefill.withdraw(*asked)

    async def _close(self, outcome: Outcome) -> None:
        """Each step runs whatever the others do: a step that fails leaves only what a lease or a report puts right."""
        if self._is_charged:
            try:
                await self._ports.scheduler.tell(RequestClosed(request_id=self._request.request_id))
            except Exception as error:
                logger.warning("closing request %s: %s", self._request.request_id, error)
        self._ports.observer.closed(
            RouteReceipt(
                path=self.path,
                outcome=outcome,
                num_prompt_tokens=len(self._request.prompt_token_ids),
                num_output_tokens=self._num_output_tokens,
                num_attempts=self._num_attempts,
                prefill_sources=self._prefill_sources,
                sources=self._sources,
            )
        )
