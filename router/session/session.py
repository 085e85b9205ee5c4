"""The life of one request: place it, have it computed, and close it. Only a session retries, and only a session closes.

When a worker fails, the request is placed again without that worker: on another prefill worker, then on path D, then on
another decode worker, then on path P. If no placement is left, the request is refused. Retries end with the first
released token, except for a resumable request: another worker goes on with the tokens that were generated as part of
the prompt. A request whose first token does not come in time is refused. A request that MAX_ENGINES_LOST engines were
lost with is ended for good.

The Scheduler may pause a resumable request that has tokens, for requests of a higher class. The session then ends the
attempt, keeps what the client has, and asks for a placement anew. That is no failure, and no worker is excluded.

Invariant: every session is closed exactly once, whatever happens to its client or to workers.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import msgspec

from cluster.errors import (
    ClientTooSlow,
    ConstraintFailed,
    EngineLost,
    InvalidRequest,
    Overloaded,
    RequestPaused,
    RequestQuarantined,
    ServingError,
    TooManyRequests,
    WorkerFailed,
    WorkerUnreachable,
)
from cluster.messages.generation import GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Outcome, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection, Slo
from cluster.messages.retention import ToolWait
from cluster.messages.scheduler_events import EngineLostWith, RequestClosed, WorkerLost
from cluster.messages.timeline import TimelineStage
from router.quarantine.quarantine import MAX_ENGINES_LOST
from router.quarantine.request_digest import digest_of
from router.session.attempt import PlacementAttempt
from router.session.deadline import FirstTokenDeadline, now
from router.session.ports import SessionPorts
from router.session.receipt import AttemptEnd, RouteReceipt, Terms
from router.session.tally import AttemptTally
from router.session.timeline import AttemptTimeline, preparation, unplaced
from router.session.timing import Timing

logger = logging.getLogger("baton.session")

PROBE_TENANT = "baton-probe"
"""The tenant of probes of quality, for the Scheduler. Each probe has a salt of its own instead."""


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
        """`verifies`: check the handoff, where there is one and the request allows it, before any token that depends on
        the handoff is released. The handoff of a suspected pair is always checked.
        """
        self._ports = ports
        self._terms = terms or Terms()
        self._request = msgspec.structs.replace(request, rank=self._terms.slo_class.rank)
        self._timing = Timing(now() if self._terms.arrived_at is None else self._terms.arrived_at)
        self._verifies = verifies
        self._deadline = FirstTokenDeadline(first_token_timeout_s, self._timing)
        self._excluded: frozenset[WorkerId] = frozenset()
        """Workers that failed on this request."""
        self._lost: frozenset[WorkerId] = frozenset()
        """The excluded workers that died, hung or could not be reached."""
        self._engines_lost: list[WorkerId] = []
        """Workers whose engine died or hung while the engine had the request."""
        self._num_engines_lost = 0
        """Number of engines that were lost with this request, and before it with requests of the same digest."""
        self._error: str | None = None
        """Code or kind of the error that the request failed with."""
        self._is_owed = False
        """It failed by its client's fault, after an engine had computed its prompt."""
        self._digest = digest_of(request, self._terms.block_hashes)
        self._placement: Placement | None = None
        self._rejection: Rejection | None = None
        self._is_charged = False
        """The Scheduler may have charged the request, even if the Scheduler's answer never came."""
        self._queued_s = 0.0
        """Seconds that the request has waited for answers of the Scheduler."""
        self._num_attempts = 0
        self._num_pauses = 0
        self._is_paused = False
        """The last attempt was paused, and did not fail."""
        self._released: list[int] = []
        """Tokens of a resumable request that the client has. Empty for other requests."""
        self._prefill_sources: PromptTokenSources | None = None
        self._sources: PromptTokenSources | None = None
        self._tallies: list[AttemptTally] = []
        """The tokens of each attempt."""
        self._granted: asyncio.Future[Any] | None = None
        """What the first token waits for."""
        self._is_denied = False
        """It was not granted."""
        self._asked_s = 0.0
        """Age of the request when the latest placement was asked for."""
        self._began_s: float | None = None
        """Age of the request when its first placement was asked for. None before."""
        self._is_waiting = False
        """A placement was asked for, and none has come."""

    @property
    def placement(self) -> Placement | None:
        """The latest placement."""
        return self._placement

    def pause(self, attempt: int) -> None:
        """The Scheduler wants the room of an attempt. Does nothing unless it is the attempt that runs now, and the
        client has tokens of it which another worker can go on after.
        """
        if attempt == self._num_attempts and self._released and self._placement is not None:
            self._ports.decode.pause(self._placement.generating, self._attempt_id)

    def await_tools(self, group: int) -> None:
        """The answer has called tools of this group: its worker is told."""
        if self._placement is not None and self._terms.block_hashes:
            self._ports.decode.await_tools(self._placement.generating, ToolWait(self._terms.block_hashes[-1], group))

    def release_after(self, granted: "asyncio.Future[Any]") -> None:
        """No token leaves before this is done: the request is placed, and its prompt is computed, meanwhile. The error
        of a grant that fails ends the request, which then counts as rejected.
        """
        self._granted = granted

    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        """Yield the request's token deltas, in order per sequence.

        Raises:
            Overloaded: no worker can take the request (TooManyRequests: because of load), or no token came in time.
            InvalidRequest: the engine refused the request.
            ClientTooSlow: the reader of this stream lags too far behind.
            RequestQuarantined: engines were lost with the request.
            ServingError: no worker is left to try, or to go on after the tokens that were released; or what the first
                token waits for has failed, whose error comes before all others.
        """
        outcome = Outcome.FAILED
        try:
            async with aclosing(self._deltas()) as deltas:
                async for delta in deltas:
                    self._timing.released(delta, now())
                    yield delta
            outcome = Outcome.FINISHED
        except (asyncio.CancelledError, GeneratorExit, ClientTooSlow) as error:
            outcome = Outcome.ABORTED
            if isinstance(error, ClientTooSlow):
                logger.warning("request %s is cut off: %s", self._request.request_id, error)
            raise
        except Overloaded:
            outcome = Outcome.REJECTED
            await self._until_granted()
            raise
        except ServingError as error:
            await self._until_granted()
            if not self._is_denied:
                self._failed(error)
            raise
        finally:
            self._close(Outcome.REJECTED if self._is_denied else outcome)

    async def _until_granted(self) -> None:
        """Raises ServingError."""
        if self._granted is None:
            return
        granted, self._granted = self._granted, None
        try:
            await asyncio.shield(granted)
        except ServingError:
            self._is_denied = True
            raise

    async def _deltas(self) -> AsyncGenerator[TokenDelta, None]:
        failure: WorkerFailed | None = None
        while True:
            attempt = self._attempt(await self._place(failure))
            tally, end = attempt.tally, None
            self._tallies.append(tally)
            try:
                async with aclosing(attempt), aclosing(attempt.opening()) as opening:
                    async for delta in opening:
                        if self._granted is not None:
                            await self._until_granted()
                        self._note_released(delta, tally)
                        yield delta
                    if attempt.stream is None:
                        return
                    async for delta in attempt.stream:
                        tally.generated(delta)
                        attempt.check_finish(delta)
                        if self._granted is not None:
                            await self._until_granted()
                        self._note_released(delta, tally)
                        yield delta
                return
            except RequestPaused:
                failure, end = None, AttemptEnd.PAUSED
                self._is_paused = True
                self._num_pauses += 1
            except WorkerFailed as error:
                failure, end = error, AttemptEnd.FAILED
                self._is_paused = False
                self._note_failure(error)
                if self._timing.num_output_tokens and not self._request.is_resumable:
                    raise
            finally:
                self._prefill_sources = attempt.prefill_sources or self._prefill_sources
                self._sources = attempt.sources or self._sources
                tally.over(self._timing.age_s(now()), end, attempt.prefill_sources, attempt.sources)

    def _note_released(self, delta: TokenDelta, tally: AttemptTally) -> None:
        tally.delivered(delta)
        if self._request.is_resumable:
            self._released += delta.token_ids

    @property
    def _attempt_id(self) -> RequestId:
        """The id under which the latest attempt runs."""
        request_id, number = self._request.request_id, self._num_attempts
        return RequestId(f"{request_id}-{number}") if number > 1 else request_id

    def _attempt(self, placement: Placement) -> PlacementAttempt:
        """The next attempt. It runs the request under an id of its own, after the tokens that were released."""
        request = msgspec.structs.replace(self._request, request_id=self._attempt_id)
        if self._released:
            request = request.after(self._released)
        terms = placement.handoff
        is_verified = request.is_verifiable and terms is not None and (self._verifies or terms.num_strikes > 0)
        is_suspect = self._num_engines_lost > 0
        if is_verified or is_suspect:
            request = msgspec.structs.replace(request, is_verified=is_verified, is_suspect=is_suspect)
        return PlacementAttempt(
            placement,
            request,
            self._request.request_id,
            self._ports,
            timing=self._timing,
            deadline=self._deadline,
            is_start=not self._released,
            timeline=AttemptTimeline(placement, self._asked_s, self._timing.age_s(now()), is_resumed=self._is_paused),
        )

    def _note_failure(self, failure: WorkerFailed) -> None:
        """Raises RequestQuarantined."""
        worker = WorkerId(failure.worker)
        self._excluded |= {worker}
        if isinstance(failure, WorkerUnreachable):
            self._lost |= {worker}
            self._ports.scheduler.tell(WorkerLost(worker=worker))
        if isinstance(failure, EngineLost):
            self._count_engine(worker)
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
        """Ask the Scheduler. `failure`: of the attempt before. None for the first attempt, and after a pause."""
        if not self._is_charged:
            self._is_charged = True
            self._ports.scheduler.when_to_pause(self._request.request_id, self.pause)
            self._began_s = self._timing.age_s(now())
        self._asked_s = self._tallies[-1].ended_s if self._tallies else self._began_s or 0.0
        self._is_waiting = True
        asked_at = now()
        try:
            answer = await self._deadline.within(self._ports.scheduler.place(self._to_place(failure)))
        finally:
            self._queued_s += now() - asked_at
        if isinstance(answer, Rejection):
            self._rejection = answer
            if answer.is_quarantined:
                raise RequestQuarantined(answer.why)
            if self._released and failure is not None:
                raise failure
            kind = TooManyRequests if answer.is_overload else Overloaded
            raise kind(answer.why, answer.retry_after_s)
        self._placement, self._is_waiting = answer, False
        self._num_engines_lost = max(self._num_engines_lost, answer.num_engines_lost)
        self._num_attempts += 1
        return answer

    def _to_place(self, failure: WorkerFailed | None) -> PlacementRequest:
        request, terms = self._request, self._terms
        return PlacementRequest(
            request_id=request.request_id,
            num_prompt_tokens=len(request.prompt_token_ids) + len(self._released),
            block_hashes=terms.block_hashes,
            tenant=(request.cache_salt or "") if terms.pinned is None else PROBE_TENANT,
            tenant_weight=terms.tenant_weight,
            has_early_token=request.is_resumable,
            num_output_tokens=len(self._released),
            max_output_tokens=request.max_output_tokens,
            num_sequences=request.num_sequences,
            attempt=self._num_attempts + 1,
            can_pause=request.is_resumable and terms.path is None,
            num_pauses=self._num_pauses,
            is_paused=self._is_paused,
            slo_class=terms.slo_class,
            ttft_s=terms.ttft_s,
            tpot_s=terms.tpot_s,
            age_s=self._timing.age_s(now()),
            can_verify=request.is_verifiable,
            can_hand_over=request.num_sequences == 1 and not request.needs_prompt_logprobs,
            excluded=self._excluded,
            lost=self._lost,
            num_engines_lost=self._num_engines_lost,
            digest=self._digest,
            path=terms.path if failure is None or terms.pinned is not None else None,
            http_request=terms.http_request,
            pinned=terms.pinned,
        )

    def _failed(self, error: ServingError) -> None:
        self._error = error.code or error.error_type
        self._is_owed = isinstance(error, ConstraintFailed) or (
            isinstance(error, InvalidRequest) and any(tally.has_computed for tally in self._tallies)
        )
        if error.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            name, num = self._request.request_id, self._num_attempts
            logger.warning("request %s failed, placed %d times: %s (%s)", name, num, error, self._error)

    def _close(self, outcome: Outcome) -> None:
        receipt = self._receipt(outcome)
        if self._is_charged:
            closed = RequestClosed(
                request_id=self._request.request_id,
                digest=self._digest,
                num_output_tokens=self._timing.num_output_tokens if outcome is Outcome.FINISHED else None,
                num_engines_lost=len(self._engines_lost),
                ttft_s=receipt.ttft_s,
                tpot_s=receipt.tpot_s,
            )
            self._ports.scheduler.tell(closed)
        self._ports.observer.closed(receipt)

    def _stages(self, duration_s: float) -> tuple[TimelineStage, ...]:
        """The parts of the request's time that belong to no attempt."""
        rendered_at, began_s = self._terms.rendered_at, self._began_s
        stages = preparation(
            None if rendered_at is None else self._timing.age_s(rendered_at),
            duration_s if began_s is None else began_s,
            len(self._request.prompt_token_ids),
        )
        if self._is_waiting:
            stages.append(unplaced(self._asked_s, duration_s, self._rejection, is_paused=self._is_paused))
        return tuple(stages)

    def _unplaced_slo(self) -> Slo:
        return self._ports.slo.of(self._terms.slo_class).resolve(0.0, self._terms.ttft_s, self._terms.tpot_s)

    def _receipt(self, outcome: Outcome) -> RouteReceipt:
        duration_s = self._timing.age_s(now())
        return RouteReceipt(
            request_id=self._request.request_id,
            outcome=outcome,
            slo_class=self._terms.slo_class,
            placement=self._placement,
            rejection=self._rejection,
            num_prompt_tokens=len(self._request.prompt_token_ids),
            num_output_tokens=self._timing.num_output_tokens,
            num_attempts=self._num_attempts,
            num_pauses=self._num_pauses,
            ttft_s=self._timing.ttft_s,
            tpot_s=self._timing.tpot_s,
            gaps=self._timing.gaps,
            queued_s=self._queued_s,
            prefill_sources=self._prefill_sources,
            sources=self._sources,
            http_request=self._terms.http_request,
            trace=self._terms.trace,
            error=self._error,
            is_owed=self._is_owed,
            engines_lost=self._engines_lost,
            attempts=tuple(tally.receipt(number, outcome) for number, tally in enumerate(self._tallies, 1)),
            duration_s=duration_s,
            unplaced_slo=None if self._placement else self._unplaced_slo(),
            timeline=self._stages(duration_s),
        )
