"""One request's life: place it, prefill, hand over, decode, close. The only place that retries and the only one that
closes.

The ladder on failure, until the first token is released: another placement without the worker that failed (another
prefill worker, then path D, then another decode worker), then refusal. After the first released token a failure ends
the stream.

Invariants: every session is closed exactly once, whatever happens to the client or the workers; a granted hand-over is
either given to one decode worker or released.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Protocol

import msgspec

from cluster.errors import (
    ClientTooSlow,
    GenerationFailed,
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
    Path,
    Placement,
    PlacementRequest,
    Rejection,
    RequestClosed,
    TokenDelta,
    WorkerId,
    WorkerLost,
)
from kvtransfer.handoff import KVHandoff, PrefillResult
from router.ports import DecodePort, PrefillPort, SchedulerPort

logger = logging.getLogger("baton.session")


class RouteReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request ran and how it ended."""

    path: Path | None
    """None when it was never placed."""
    outcome: Outcome
    num_prompt_tokens: int
    num_output_tokens: int


class RequestObserver(Protocol):
    def closed(self, receipt: RouteReceipt) -> None:
        """Called exactly once per session."""
        ...


class SessionPorts(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: SchedulerPort
    prefill: PrefillPort
    decode: DecodePort
    observer: RequestObserver


class Session:
    def __init__(self, request: GenerateRequest, ports: SessionPorts, path: Path | None = None) -> None:
        """`path` forces where the request runs; None lets the Scheduler decide."""
        self._request = request
        self._ports = ports
        self._forced_path = path
        self._excluded: frozenset[WorkerId] = frozenset()
        self._placement: Placement | None = None
        self._is_charged = False
        """The Scheduler may have charged the request, even if its answer never came."""
        self._prefill_call: asyncio.Future[PrefillResult | None] | None = None
        self._handoff: KVHandoff | None = None
        """Granted, and not known to have reached a decode worker: its first delta shows that it has."""
        self._num_output_tokens = 0

    @property
    def path(self) -> Path | None:
        """Where the request runs now; final once the first token is released."""
        return self._placement.path if self._placement else None

    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        """Yield the request's token deltas, in order per sequence.

        Raises:
            Overloaded: no worker can take the request.
            InvalidRequest: the engine refused it.
            ClientTooSlow: whoever reads this lags too far behind.
            ServingError: the engine failed after the first released token, or no worker was left to try.
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
        while True:
            placement = await self._place()
            try:
                async with aclosing(self._attempt(placement)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except WorkerFailed as failure:
                if isinstance(failure, WorkerUnreachable):
                    with suppress(ServingError):
                        await self._ports.scheduler.tell(WorkerLost(worker=WorkerId(failure.worker)))
                if self._num_output_tokens:
                    raise
                self._excluded |= {WorkerId(failure.worker)}

    async def _place(self) -> Placement:
        self._is_charged = True
        answer = await self._ports.scheduler.place(
            PlacementRequest(
                request_id=self._request.request_id,
                num_prompt_tokens=len(self._request.prompt_token_ids),
                can_hand_over=self._request.num_sequences == 1 and not self._request.needs_prompt_logprobs,
                excluded=self._excluded,
                path=self._forced_path,
            )
        )
        if isinstance(answer, Rejection):
            raise Overloaded(answer.why, answer.retry_after_s)
        self._placement = answer
        return answer

    async def _attempt(self, placement: Placement) -> AsyncGenerator[TokenDelta, None]:
        with suppress(ServingError):
            await self._release_handoff()  # of an earlier attempt, whose decode worker failed
        prefilled = None if placement.prefill is None else await self._prefill(placement.prefill)
        decoding = self._ports.decode.generate(placement.decode, self._request, self._handoff)
        async with aclosing(decoding) as deltas:
            async for delta in deltas:
                self._handoff = None
                if delta.finish_reason is FinishReason.ERROR:
                    raise GenerationFailed("the decode engine failed on this request", placement.decode)
                yield with_prefix_hits_of(prefilled, delta)

    async def _prefill(self, worker: WorkerId) -> PrefillResult:
        # Shielded: when the client leaves, the call is not torn down but aborted and awaited (_close), because a result
        # lost on its way would leave its blocks pinned until the lease runs out.
        self._prefill_call = asyncio.ensure_future(self._ports.prefill.prefill(worker, self._request))
        result = await asyncio.shield(self._prefill_call)
        self._prefill_call = None
        if result is None:
            raise PrefillFailed("the prefill ended without a hand-over", worker)
        self._handoff = result.handoff
        return result

    async def _close(self, outcome: Outcome) -> None:
        """Each step runs whatever the others do: a step that fails leaves only what a lease or a report puts right."""
        for step in (self._end_prefill, self._release_handoff, self._release_charge):
            try:
                await step()
            except Exception as error:
                logger.warning("closing request %s: %s", self._request.request_id, error)
        self._ports.observer.closed(
            RouteReceipt(
                path=self.path,
                outcome=outcome,
                num_prompt_tokens=len(self._request.prompt_token_ids),
                num_output_tokens=self._num_output_tokens,
            )
        )

    async def _end_prefill(self) -> None:
        """Take the hand-over of a prefill that is still running, or ran to its end while the client left."""
        call, self._prefill_call = self._prefill_call, None
        if call is None or self._placement is None or self._placement.prefill is None:
            return
        try:
            if not call.done():
                await self._ports.prefill.abort(self._placement.prefill, self._request.request_id)
        finally:
            with suppress(ServingError, asyncio.CancelledError):
                result = await call
                self._handoff = result.handoff if result else None

    async def _release_handoff(self) -> None:
        handoff, self._handoff = self._handoff, None
        if handoff is not None and self._placement is not None:
            await self._ports.decode.release(self._placement.decode, self._request.request_id, handoff)

    async def _release_charge(self) -> None:
        if self._is_charged:
            await self._ports.scheduler.tell(RequestClosed(request_id=self._request.request_id))


def with_prefix_hits_of(prefilled: PrefillResult | None, delta: TokenDelta) -> TokenDelta:
    """Report a pulled prompt as the prefill worker found it: what it computed is no hit, although decode did not."""
    if prefilled is None or delta.prompt_sources is None or not delta.prompt_sources.pulled:
        return delta
    return msgspec.structs.replace(delta, prompt_sources=prefilled.prompt_sources)
