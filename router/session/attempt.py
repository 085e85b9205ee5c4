"""One placement of a request, from its prompt to its last token.

Invariant: a handoff that was granted is either given to one decode worker or withdrawn, however the attempt ends.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from cluster.errors import GenerationFailed, HandoffMismatch, PrefillFailed
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.placement import Placement
from cluster.messages.scheduler_events import FirstToken, HandoffVerdict, PrefillDone
from kvtransfer.handoff import PrefillResult
from router.session.deadline import FirstTokenDeadline, now
from router.session.handoff_check import HandoffCheck
from router.session.ports import SessionPorts
from router.session.tally import AttemptTally
from router.session.timeline import AttemptTimeline
from router.session.timing import Timing

T = TypeVar("T")


class PlacementAttempt:
    def __init__(
        self,
        placement: Placement,
        request: GenerateRequest,
        request_id: RequestId,
        ports: SessionPorts,
        *,
        timing: Timing,
        deadline: FirstTokenDeadline,
        is_start: bool,
        timeline: AttemptTimeline | None = None,
    ) -> None:
        """`request`: as this attempt runs it, under an id of its own; `request_id`: the id that the Scheduler knows;
        `is_start`: no token was released before this attempt. Without a `timeline`, it begins now.
        """
        self._placement = placement
        self._request = request
        self._request_id = request_id
        self._ports = ports
        self._timing = timing
        self._deadline = deadline
        self._is_start = is_start
        self._prefilled: PrefillResult | None = None
        self._held: TokenDelta | None = None
        """The first token, from the prefill worker, until it is released."""
        self._check: HandoffCheck | None = None
        self._unredeemed: tuple[WorkerId, RequestId] | None = None
        """The prefill worker that may hold a handoff which no decode worker has redeemed, and the prefill's id."""
        placed_s = timing.age_s(now())
        self._timeline = timeline or AttemptTimeline(placement, placed_s, placed_s)
        self.tally = AttemptTally(placement, len(request.prompt_token_ids), placed_s, self._timeline)
        """What of the attempt's tokens reached the session, and the client."""
        self.stream: AsyncGenerator[TokenDelta, None] | None = None
        """The deltas of the worker that generates. `opening` takes the first one. None before the worker is asked, and
        if the token after the prompt is the whole answer.
        """
        self.sources: PromptTokenSources | None = None
        """Where the prompt came from on the worker that generates. None before its first token."""

    @property
    def prefill_sources(self) -> PromptTokenSources | None:
        """Where the prompt came from on the prefill worker of path P->D. None before the prompt is computed."""
        return self._prefilled.first.prompt_sources if self._prefilled else None

    async def opening(self) -> AsyncGenerator[TokenDelta, None]:
        """Yield the first deltas: prefill, release the first token or hold it, generate, check. `stream` has the rest.

        Raises:
            Overloaded: the first token did not come in time.
            WorkerFailed: a worker failed, or the handoff was wrong.
        """
        if self._placement.prefill is not None and self._placement.decode is not None:
            await self._prefill(self._placement.prefill)
            if self._held is not None and (self._is_answered or self._hold_s() <= 0.0):
                yield self._release()
            if self._is_answered:
                return
        handoff = self._prefilled.handoff if self._prefilled else None
        self.tally.asked(self._request.num_sequences)
        stream = self._ports.decode.generate(self._placement.generating, self._timed(self._request), handoff)
        self.stream = stream
        came_s: float | None = None
        if self._held is None:
            first = await self._deadline.within(anext(stream, None))
        else:
            async with _running(anext(stream, None)) as coming:
                done, _ = await asyncio.wait([coming], timeout=self._hold_s())
                came_s = self._age_s() if done else None
                yield self._release()
                first = await coming
        if first is not None:
            self._timeline.generated(self._age_s() if came_s is None else came_s, first.stages)
            self.tally.generated(first)
            self.check_finish(first)
            yield self._first_generated(await self._checked(first))

    def check_finish(self, delta: TokenDelta) -> None:
        """Raises GenerationFailed. A session aborts no request that it still reads: such an abort is that of an engine
        that shuts down.
        """
        if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise GenerationFailed("the engine failed on this request", self._placement.generating)

    async def aclose(self) -> None:
        """Stop what still runs for this attempt, and withdraw a handoff that no decode worker has redeemed."""
        try:
            if self.stream is not None:
                await self.stream.aclose()
        finally:
            self._withdraw()
            if self._check is not None:
                self._check.end()

    async def _prefill(self, worker: WorkerId) -> None:
        """Have the prompt computed. The token after it is held if the request can go on after a token."""
        request = self._request
        self._unredeemed = (worker, request.request_id)
        self.tally.asked(1)
        result = await self._deadline.within(self._ports.prefill.prefill(worker, self._timed(request)))
        if result is None:
            raise PrefillFailed("the prefill ended without a handoff", worker)
        self._prefilled = result
        self._timeline.prefilled(self._age_s(), result.first.stages)
        self.tally.prefilled(result.first)
        self._ports.scheduler.tell(PrefillDone(request_id=self._request_id))
        if request.is_resumable and result.follows(len(request.prompt_token_ids)):
            self._held = self._as_released(result.first, result.first.prompt_sources)
            if self._is_answered:
                return
            self._request = request.after(result.first.token_ids)
        handoff, terms, decode = result.handoff, self._placement.handoff, self._placement.decode
        if request.is_verified and handoff is not None and terms is not None and decode is not None:
            self._check = HandoffCheck(handoff, decode, terms, self._request, result, self._ports, self.tally)

    def _timed(self, request: GenerateRequest) -> GenerateRequest:
        """The request with its objectives: the TTFT as the time that is left until the first token is due. A client
        that has tokens waits for the next one. A request that was paused comes after those that it has made room for.
        """
        slo = self._placement.slo
        if slo is None:
            return request
        left_s = slo.ttft_s - self._timing.age_s(now()) if self._is_start else 0.0
        if self._timeline.is_resumed:
            left_s = slo.ttft_s
        return msgspec.structs.replace(request, first_token_within_s=left_s, tpot_s=slo.tpot_s)

    @property
    def _is_answered(self) -> bool:
        """The token after the prompt is the whole answer."""
        return self._request.is_resumable and self._prefilled is not None and self._prefilled.handoff is None

    def _hold_s(self) -> float:
        """Seconds for which the held token may still wait for the decode worker's first token."""
        return self._placement.holds_first_until_s - self._age_s()

    def _age_s(self) -> float:
        return self._timing.age_s(now())

    def _release(self) -> TokenDelta:
        held, self._held, self._is_start = self._held, None, False
        assert held is not None
        self._timeline.released(self._age_s())
        return held

    async def _checked(self, first: TokenDelta) -> TokenDelta:
        """The first delta that may be released: `first`, unless the handoff does not pass its check. Raises
        WorkerFailed.
        """
        self._ports.scheduler.tell(FirstToken(request_id=self._request_id))
        self._withdraw()  # a decode worker that gives tokens does not redeem a handoff any more
        if self._check is not None:
            distance = await self._check.distance(first)
            if not self._check.accepts(distance):
                first = await self._generated_anew(first, self._check)
            self._timeline.checked(self._age_s())
        return first

    async def _generated_anew(self, first: TokenDelta, check: HandoffCheck) -> TokenDelta:
        """Go on with a computation on the same worker that does not use the handoff, which also tells who was wrong.
        Raises HandoffMismatch if it disagrees with both. If it does not come, nobody is blamed: the client left, its
        time is over, or the worker failed or had no place for it.
        """
        worker, anew = self._placement.generating, None
        try:
            assert self.stream is not None
            await self.stream.aclose()
            self.tally.asked(self._request.num_sequences)
            self.stream = self._ports.decode.generate(worker, self._timed(check.request_anew), None)
            anew = await self._deadline.within(anext(self.stream, None))
            if anew is not None:
                self.tally.generated(anew)
        finally:
            if anew is None:
                check.drop_copy()
        if anew is None or check.judge(first, anew) is HandoffVerdict.UNCLEAR:
            raise HandoffMismatch("the handoff was wrong", worker)
        self.check_finish(anew)
        return anew

    def _first_generated(self, first: TokenDelta) -> TokenDelta:
        """The first delta of the worker that generates, as the client gets it. A prompt whose KV blocks were pulled
        counts as the prefill worker found it: tokens which that worker computed are no prefix hit.
        """
        self.sources = sources = first.prompt_sources
        if self._prefilled is not None and sources is not None and sources.pulled:
            sources = self.prefill_sources
        return self._as_released(first, sources)

    def _as_released(self, first: TokenDelta, sources: PromptTokenSources | None) -> TokenDelta:
        """A worker's first delta without the log-probabilities of the check. The sources of a prompt are released once
        for a request.
        """
        if not self._is_start:
            sources = None
        if sources is first.prompt_sources and first.top_logprobs is None:
            return first
        return msgspec.structs.replace(first, prompt_sources=sources, top_logprobs=None)

    def _withdraw(self) -> None:
        unredeemed, self._unredeemed = self._unredeemed, None
        if unredeemed is not None:
            self._ports.prefill.withdraw(*unredeemed)


@asynccontextmanager
async def _running(awaitable: Awaitable[T]) -> AsyncGenerator[asyncio.Future[T], None]:
    """Run the awaitable as a task for the time of the context. The task has ended when the context ends."""
    task = asyncio.ensure_future(awaitable)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
