"""The decode side of the handoff: redeems its lease before the engine may pull, keeps the lease while the pull lasts,
and has the prompt computed here if the pull does not end in time.

vLLM's pull has no timeout, does not notice stale blocks, and waits for a peer that hangs. So three rules hold: the
prefill worker must have promised the blocks just before; its promise must be extended before it ends; and a read must
end in time. The caller that runs a request sees its tokens and nothing of this.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from cluster.engine.port import PullingEngine
from cluster.errors import ServingError, WorkerUnreachable
from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.reports import TransferSample
from cluster.metrics.handoffs import HANDOFF, PULLS, TRANSFER_FAILURES
from cluster.step_stream.buffer import DeltaSink
from cluster.step_stream.stage_log import StageLog
from decode.pull_stages import note_pull
from kvtransfer.handoff import KVHandoff
from kvtransfer.lease_terms import Promise, Refusal

logger = logging.getLogger("baton.puller")

REDEEM_TIMEOUT_S = 1.0
"""Seconds to wait for the answer to a redemption, on the way to the first token. Longer delays the first token if the
prefill worker hangs; shorter computes prompts here that a slow prefill worker would have given.
"""
WATCH_INTERVAL_S = 1.0
"""Seconds between two looks at the pulls, and the age from which a pull is looked at. A pull takes milliseconds, so
only pulls that wait for a place in the engine, or hang, get this old. Longer may let promises end; shorter asks prefill
workers and the engine more often.
"""
EXTEND_TIMEOUT_S = 1.0
"""Seconds to wait for the answer to an extension. Longer delays the look at all other pulls; shorter gives up pulls
from a slow prefill worker.
"""
MAX_SAMPLES = 16
"""Transfers that are kept for the next report. Fewer makes the Scheduler learn more slowly; more makes reports larger.
"""
NEVER = 0.0
"""A deadline that has always passed."""


class LenderPort(Protocol):
    async def redeem(self, handoff: KVHandoff, decode: WorkerId, digest: bytes) -> Promise | Refusal:
        """Raises ServingError."""
        ...

    async def extend(self, handoff: KVHandoff, decode: WorkerId) -> Promise | Refusal:
        """Raises ServingError."""
        ...

    def give_back(self, handoff: KVHandoff, decode: WorkerId) -> None: ...


class _Doubt(NamedTuple):
    """Why a pull will not end."""

    reason: str
    """In one word, for metrics."""
    why: str


class KVPuller:
    """A `GeneratingEngine` (cluster/step_stream/worker_side.py) that takes requests with and without handoffs."""

    def __init__(
        self,
        engine: PullingEngine,
        lender: LenderPort,
        worker: WorkerId,
        pull_timeout_s: float,
        on_suspect: Callable[[WorkerId], None],
    ) -> None:
        """`worker`: this decode worker. `pull_timeout_s`: seconds that a read may take. `on_suspect` is called with
        prefill workers that cannot be reached, or reads from which hang or fail.
        """
        self._engine = engine
        self._lender = lender
        self._worker = worker
        self._pull_timeout_s = pull_timeout_s
        self._on_suspect = on_suspect
        self._pulls: dict[RequestId, _Pull] = {}
        self._watching: asyncio.Task[None] | None = None
        self._samples: deque[TransferSample] = deque(maxlen=MAX_SAMPLES)

    def take_samples(self) -> list[TransferSample]:
        """Samples of the pulls since the last call, at most the latest MAX_SAMPLES."""
        samples = list(self._samples)
        self._samples.clear()
        return samples

    async def start(self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink) -> None:
        """Raises ServingError."""
        deadline = None
        if handoff is not None:
            deadline = await self._redeem(request, handoff, sink.stages)
        if handoff is None or deadline is None:
            await self._engine.start(request, None, sink)
            return
        pull = _Pull(request, handoff, deadline, sink, self._ended, lambda: self._pulls.pop(request.request_id, None))
        self._pulls[request.request_id] = pull
        try:
            await self._engine.start(request, handoff, pull, deadline)
        except BaseException as error:
            pull.end()
            if isinstance(error, Exception):
                self._lender.give_back(handoff, self._worker)
            raise
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def stop(self, request_id: RequestId) -> None:
        if pull := self._pulls.get(request_id):
            await pull.cancel()
        await self._engine.stop(request_id)

    async def _redeem(self, request: GenerateRequest, handoff: KVHandoff, stages: StageLog) -> float | None:
        """The time until which the pull counts. None if there must be no pull."""
        asked_at, reason = _now(), "refused"
        try:
            async with asyncio.timeout(REDEEM_TIMEOUT_S):
                answer = await self._lender.redeem(handoff, self._worker, handoff.digest_of(request.prompt_token_ids))
        except (ServingError, TimeoutError) as error:
            answer, reason = Refusal(str(error) or "no answer"), "unreachable"
            self._lender.give_back(handoff, self._worker)
            self._on_suspect(handoff.worker)
        except asyncio.CancelledError:
            self._lender.give_back(handoff, self._worker)
            raise
        stages.add("promise", asked_at, _now(), **({} if isinstance(answer, Promise) else {"why": "refused"}))
        if isinstance(answer, Promise):
            PULLS.labels("redeemed").inc()
            HANDOFF.labels("redeem").observe(_now() - asked_at)
            return asked_at + answer.remaining_s
        logger.warning(
            "request %s is computed here: no pull from %s: %s", request.request_id, handoff.worker, answer.why
        )
        PULLS.labels("refused").inc()
        TRANSFER_FAILURES.labels(reason).inc()
        return None

    def _ended(self, pull: "_Pull", first: TokenDelta) -> None:
        """The first token has come. So the pull has ended or failed, or was not needed, or has been given up."""
        known, sources = self._engine.pull_of(pull.request.request_id), first.prompt_sources
        if pull.is_given_up or sources is None:
            return
        seconds = None if known is None else known.seconds
        worker = pull.handoff.worker
        if seconds is None and sources.local < pull.handoff.num_tokens:
            self._lender.give_back(pull.handoff, self._worker)  # an engine does not report blocks that it has not read
            if _now() < pull.deadline:  # the engine itself gives up a pull that is late
                self._on_suspect(worker)
            PULLS.labels("failed").inc()
            TRANSFER_FAILURES.labels("read_failed").inc()
            logger.info("request %s was computed here: the pull from %s failed", pull.request.request_id, worker)
        elif seconds is not None and sources.pulled:
            HANDOFF.labels("pull").observe(seconds)
            self._samples.append(TransferSample(worker, sources.pulled, seconds))
        if known is not None:
            note_pull(pull.stages, known)

    async def _watch(self) -> None:
        """Extend the promises of old pulls, and give up those that will not end, until there is no pull."""
        while self._pulls:
            await asyncio.sleep(WATCH_INTERVAL_S)
            old = [pull for pull in self._pulls.values() if pull.is_old and not pull.is_given_up]
            if not old:
                continue
            try:
                await asyncio.gather(*(self._extend(pull) for pull in old))
                reading = await self._engine.renew_pulls({pull.request.request_id: pull.deadline for pull in old})
            except Exception as error:  # without an answer, the deadlines pass
                logger.warning("pulls not looked after: %s", error)
                reading = {}
            for pull in old:
                doubt = self._doubt(pull, reading.get(pull.request.request_id, 0.0))
                if doubt is not None and pull.is_pending:
                    pull.give_up(self._compute_instead(pull, doubt))

    async def _extend(self, pull: "_Pull") -> None:
        """A refusal does not end the pull: the read may just have ended. If it has not, the promise will end."""
        asked_at = _now()
        try:
            async with asyncio.timeout(EXTEND_TIMEOUT_S):
                answer = await self._lender.extend(pull.handoff, self._worker)
        except TimeoutError:
            pull.is_answered = False
        except ServingError as error:
            pull.is_answered = False
            pull.is_lost = isinstance(error, WorkerUnreachable)
        else:
            pull.is_answered = True
            if isinstance(answer, Promise):
                pull.deadline = asked_at + answer.remaining_s

    def _doubt(self, pull: "_Pull", reading_s: float) -> _Doubt | None:
        """None while the pull may still end."""
        worker = pull.handoff.worker
        if reading_s > self._pull_timeout_s:
            self._on_suspect(worker)
            return _Doubt("too_slow", f"the pull from {worker} has not ended within {self._pull_timeout_s:g} s")
        if pull.is_lost or (_now() >= pull.deadline and not pull.is_answered):
            self._on_suspect(worker)
            return _Doubt("unreachable", f"prefill worker {worker} does not answer")
        if _now() >= pull.deadline:
            return _Doubt("promise_ended", f"the promise of {worker} has ended")
        return None

    async def _compute_instead(self, pull: "_Pull", doubt: _Doubt) -> None:
        request_id = pull.request.request_id
        logger.warning("request %s is computed here after all: %s", request_id, doubt.why)
        PULLS.labels("given_up").inc()
        TRANSFER_FAILURES.labels(doubt.reason).inc()
        try:
            await self._engine.renew_pulls({request_id: NEVER})  # from here on the pull does not count
            await self._engine.stop(request_id)
            self._lender.give_back(pull.handoff, self._worker)
            await self._engine.start(pull.request, None, pull)
        except Exception as error:
            pull.fail(error if isinstance(error, ServingError) else ServingError(f"not computed: {error!r}"))


class _Pull:
    """The engine's sink of a request with a pull, until the first token and after it."""

    def __init__(
        self,
        request: GenerateRequest,
        handoff: KVHandoff,
        deadline: float,
        sink: DeltaSink,
        on_first: Callable[["_Pull", TokenDelta], None],
        on_end: Callable[[], object],
    ) -> None:
        self.request = request
        self.handoff = handoff
        self.deadline = deadline
        """The time until which the pull counts."""
        self.is_pending = True
        self.is_answered = True
        """False if the prefill worker did not answer the last extension."""
        self.is_lost = False
        """True if the prefill worker cannot be reached."""
        self._sink = sink
        self.stages = sink.stages
        self._on_first = on_first
        self._on_end = on_end
        self._started_at = _now()
        self._giving_up: asyncio.Future[None] | None = None

    @property
    def is_old(self) -> bool:
        return _now() - self._started_at >= WATCH_INTERVAL_S

    @property
    def is_given_up(self) -> bool:
        return self._giving_up is not None

    def put(self, delta: TokenDelta) -> None:
        if self.is_pending:
            HANDOFF.labels("first_token").observe(_now() - self._started_at)
            self._on_first(self, delta)
            self.end()
            delta = msgspec.structs.replace(delta, stages=(delta.stages or ()) + self.stages.take())
        self._sink.put(delta)

    def fail(self, error: BaseException) -> None:
        self.end()
        self._sink.fail(error)

    def end(self) -> None:
        self.is_pending = False
        self._on_end()

    def give_up(self, compute: Awaitable[None]) -> None:
        self._giving_up = asyncio.ensure_future(compute)

    async def cancel(self) -> None:
        self.end()
        if self._giving_up is not None:
            self._giving_up.cancel()
            await asyncio.wait([self._giving_up])


def _now() -> float:
    return asyncio.get_running_loop().time()
