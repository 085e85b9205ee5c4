"""The decode side of the hand-over: redeems it before the engine may pull, keeps its lease while the pull is waited
for, and gives the pull up for a recomputation where it does not come.

vLLM's pull has no timeout, notices no stale blocks, and waits for a peer that hangs. So the prefill worker must have
promised the blocks just before, by an answer that shows that it lives; it must go on answering; and a read must end in
time. Whoever runs a request sees nothing of all this but its tokens.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Protocol

from cluster import metrics
from cluster.errors import ServingError
from cluster.feed import DeltaSink
from cluster.types import GenerateRequest, RequestId, TokenDelta, WorkerId
from kvtransfer.handoff import KVHandoff
from kvtransfer.lease import Promise, Refusal

logger = logging.getLogger("baton.puller")

REDEEM_TIMEOUT_S = 1.0
EXTEND_INTERVAL_S = 1.0
"""A pull takes milliseconds: only what waits for a place in the engine, or hangs, is ever extended."""
EXTEND_TIMEOUT_S = 2.0


class PullingEngine(Protocol):
    async def start(
        self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink, pull_deadline: float = 0.0
    ) -> None:
        """Raises ServingError. A pull that ends after its deadline is not used."""
        ...

    async def stop(self, request_id: RequestId) -> None:
        """End a generation and forget it. No-op when it is not running."""
        ...

    async def renew_pull(self, request_id: RequestId, pull_deadline: float) -> float:
        """Returns for how many seconds the engine has been reading."""
        ...


class LenderPort(Protocol):
    async def redeem(self, handoff: KVHandoff, digest: bytes) -> Promise | Refusal:
        """Raises ServingError."""
        ...

    async def extend(self, handoff: KVHandoff) -> Promise | Refusal:
        """Raises ServingError."""
        ...

    def give_back(self, handoff: KVHandoff) -> None: ...


class Puller:
    """An engine that generates with and without hand-overs (decode/step_stream.py)."""

    def __init__(
        self,
        engine: PullingEngine,
        lender: LenderPort,
        pull_timeout_s: float,
        on_suspect: Callable[[WorkerId], None],
    ) -> None:
        """`pull_timeout_s`: how long a read may take. `on_suspect` is told of prefill workers that pulls hang on."""
        self._engine = engine
        self._lender = lender
        self._pull_timeout_s = pull_timeout_s
        self._on_suspect = on_suspect
        self._pulls: dict[RequestId, _Pull] = {}

    async def start(self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink) -> None:
        """Raises ServingError."""
        deadline = await self._redeem(request, handoff) if handoff else None
        if handoff is None or deadline is None:
            await self._engine.start(request, None, sink)
            return
        pull = _Pull(sink, lambda: self._pulls.pop(request.request_id, None))
        self._pulls[request.request_id] = pull
        try:
            await self._engine.start(request, handoff, pull, deadline)
        except BaseException as error:
            pull.end()
            if isinstance(error, ServingError):
                self._lender.give_back(handoff)
            raise
        pull.watch_later(lambda: self._watch(request, handoff, pull))

    async def stop(self, request_id: RequestId) -> None:
        if pull := self._pulls.get(request_id):
            await pull.cancel()
        await self._engine.stop(request_id)

    async def _redeem(self, request: GenerateRequest, handoff: KVHandoff) -> float | None:
        """Until when the pull counts; None where there must be none."""
        asked_at = _now()
        try:
            async with asyncio.timeout(REDEEM_TIMEOUT_S):
                answer = await self._lender.redeem(handoff, handoff.digest_of(request.prompt_token_ids))
        except (ServingError, TimeoutError) as error:
            answer = Refusal(str(error) or "no answer")
        except asyncio.CancelledError:
            self._lender.give_back(handoff)
            raise
        if isinstance(answer, Promise):
            metrics.PULLS.labels("redeemed").inc()
            metrics.HANDOVER.labels("redeem").observe(_now() - asked_at)
            return asked_at + answer.remaining_s
        logger.warning(
            "request %s is computed here: no pull from %s: %s", request.request_id, handoff.worker, answer.why
        )
        metrics.PULLS.labels("refused").inc()
        return None

    async def _watch(self, request: GenerateRequest, handoff: KVHandoff, pull: "_Pull") -> None:
        while pull.is_pending:
            if (why := await self._doubt(request, handoff)) is not None and pull.is_pending:
                await self._compute_instead(request, handoff, pull, why)
                return
            await asyncio.sleep(EXTEND_INTERVAL_S)

    async def _doubt(self, request: GenerateRequest, handoff: KVHandoff) -> str | None:
        """Extend the promise; returns why the pull will not come, if so. A promise that is not extended any more is no
        such reason: the read may just have ended, and if it has not, its end will not count.
        """
        asked_at = _now()
        try:
            async with asyncio.timeout(EXTEND_TIMEOUT_S):
                answer = await self._lender.extend(handoff)
        except (ServingError, TimeoutError) as error:
            return f"prefill worker {handoff.worker} does not answer ({error or 'no word in time'})"
        deadline = asked_at + answer.remaining_s if isinstance(answer, Promise) else 0.0
        reading_s = await self._engine.renew_pull(request.request_id, deadline) if deadline else 0.0
        if reading_s > self._pull_timeout_s:
            return f"the pull from {handoff.worker} has not ended within {self._pull_timeout_s:g} s"
        return None

    async def _compute_instead(self, request: GenerateRequest, handoff: KVHandoff, pull: "_Pull", why: str) -> None:
        logger.warning("request %s is computed here after all: %s", request.request_id, why)
        metrics.PULLS.labels("given_up").inc()
        self._on_suspect(handoff.worker)
        await self._engine.stop(request.request_id)
        try:
            await self._engine.start(request, None, pull)
        except ServingError as error:
            pull.fail(error)


class _Pull:
    """A request whose first token is waited for, as the engine's sink."""

    def __init__(self, sink: DeltaSink, on_end: Callable[[], object]) -> None:
        self._sink = sink
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._started_at = _now()
        self.is_pending = True

    def put(self, delta: TokenDelta) -> None:
        if self.is_pending:
            metrics.HANDOVER.labels("first_token").observe(_now() - self._started_at)
            self.end()
        self._sink.put(delta)

    def fail(self, error: BaseException) -> None:
        self.end()
        self._sink.fail(error)

    def watch_later(self, watch: Callable[[], Coroutine[None, None, None]]) -> None:
        if self.is_pending:
            self._timer = asyncio.get_running_loop().call_later(EXTEND_INTERVAL_S, self._start_watch, watch)

    def end(self) -> None:
        """A watch that is running sees it by itself."""
        self.is_pending = False
        if self._timer is not None:
            self._timer.cancel()
        self._on_end()

    async def cancel(self) -> None:
        self.end()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    def _start_watch(self, watch: Callable[[], Coroutine[None, None, None]]) -> None:
        self._watching = asyncio.create_task(watch())


def _now() -> float:
    return asyncio.get_running_loop().time()
