"""Asker: asks one worker, or a pair, for one greedy answer, through an ordinary session.

The session's receipt goes nowhere else: a probe is in no ledger, in no goodput and in no histogram of clients.
"""

import asyncio
import logging
import uuid
from collections.abc import Collection
from contextlib import aclosing
from typing import NamedTuple

from api.frontend.generation import SessionFactory
from api.frontend.probing import probe_request, steps_of
from api.quality.comparison import ProbeResult
from cluster.errors import Overloaded, ServingError, TooManyRequests
from cluster.messages.ids import Path, RequestId, SloClass, WorkerId
from cluster.messages.placement import Pinned
from cluster.messages.quality import Answer
from cluster.messages.scheduler_events import HandoffChecked
from cluster.metrics.quality import PROBE_TOKENS, forget_tokens
from router.session.receipt import RouteReceipt, Terms

logger = logging.getLogger("baton.quality")

PROBE_TIMEOUT_S = 60.0
"""Time for the answer to a probe, in seconds. Then the probe has failed. Longer keeps probes of a slow worker in its
engine; shorter fails on a busy one.
"""


class ProbeAnswer(NamedTuple):
    """What became of a probe."""

    answer: Answer | None
    """None if there is no whole answer."""
    why_not: ProbeResult = ProbeResult.FAILED
    """FAILED or SKIPPED, if there is no answer."""
    is_overload: bool = False
    """It did not run because the whole service has too much to do."""
    num_engines_lost: int = 0
    """Engines that were lost with it."""


class _ProbeObserver:
    def __init__(self) -> None:
        self.receipt: RouteReceipt | None = None

    def closed(self, receipt: RouteReceipt) -> None:
        self.receipt = receipt

    def verified(self, checked: HandoffChecked) -> None:
        """Probes ask for log-probabilities, so that their handoffs are not verified."""


class Asker:
    def __init__(self, start_session: SessionFactory, num_tokens: int) -> None:
        self._start_session = start_session
        self._num_tokens = num_tokens
        self._counted: set[WorkerId] = set()
        """Workers whose tokens are counted."""

    async def ask(self, path: Path, pinned: Pinned, prompt: list[int], salt: str) -> ProbeAnswer:
        """`salt`: only probes with the same salt find each other's KV blocks."""
        request = probe_request(RequestId(f"probe-{uuid.uuid4().hex}"), prompt, self._num_tokens, salt)
        observer = _ProbeObserver()
        session = self._start_session(request, Terms(slo_class=SloClass.BATCH, path=path, pinned=pinned), observer)
        answer: Answer = []
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S), aclosing(session.run()) as deltas:
                async for delta in deltas:
                    answer += steps_of(delta)
            return ProbeAnswer(answer)
        except (ServingError, TimeoutError) as error:
            logger.info("a probe of %s on path %s has no answer: %s", pinned, path, error)
            return _not_answered(error, observer.receipt)
        finally:
            if observer.receipt is not None:
                self._count(observer.receipt)

    def keep(self, workers: Collection[WorkerId]) -> None:
        """Forget what was counted of workers that are gone."""
        gone = self._counted - set(workers)
        self._counted -= gone
        forget_tokens(gone)

    def _count(self, receipt: RouteReceipt) -> None:
        for attempt in receipt.attempts:
            self._add(attempt.worker, attempt.sources.computed if attempt.sources else 0, attempt.num_generated)
            if attempt.prefill_worker is not None:
                computed = attempt.prefill_sources.computed if attempt.prefill_sources else 0
                self._add(attempt.prefill_worker, computed, attempt.num_prefill_generated)

    def _add(self, worker: WorkerId, computed: int, generated: int) -> None:
        self._counted.add(worker)
        PROBE_TOKENS.labels(worker, "prompt").inc(computed)
        PROBE_TOKENS.labels(worker, "answer").inc(generated)


def _not_answered(error: Exception, receipt: RouteReceipt | None) -> ProbeAnswer:
    num_lost = len(receipt.engines_lost) if receipt else 0
    has_run = receipt is not None and receipt.num_attempts > 0
    if isinstance(error, Overloaded) and not has_run:
        return ProbeAnswer(None, ProbeResult.SKIPPED, isinstance(error, TooManyRequests))
    return ProbeAnswer(None, ProbeResult.FAILED, num_engines_lost=num_lost)
