"""The link probe: handoffs that a decode worker makes to prove that a link works and to measure its speed.

As for a request, the prefill worker computes a prompt that no cache holds, and the decode engine pulls its KV blocks
and answers with one token. The times come from the decode engine's telemetry, so they contain no computing. The blocks
of a handoff that fails are given back.
"""

import itertools
from typing import Protocol

from cluster.engine.port import ProbingEngine
from cluster.errors import PrefillFailed
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.transport import LinkSpeed
from cluster.metrics.engines import UNCLAIMED_TOKENS
from cluster.step_stream.buffer import DeltaSink, TokenBuffer
from decode.link_speed import LinkSample, fit
from kvtransfer.handoff import KVHandoff, PrefillResult

SMALL_BLOCKS = 2
"""KV blocks of a small handoff, which shows the latency of a link. More hides the latency behind the bandwidth; fewer
makes the time of a transfer harder to measure.
"""
NUM_SMALL, NUM_LARGE = 6, 3
"""Samples per size. The engine notices the end of a transfer between two steps, which blurs small transfers more, and
other traffic may spoil samples. Fewer measures less well; more disturbs requests for longer.
"""


class ProbingPuller(Protocol):
    """Pulls as for requests (decode/kv_puller.py)."""

    async def start(self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink) -> None:
        """Raises ServingError."""
        ...

    async def stop(self, request_id: RequestId) -> None: ...


class ProbedPrefill(Protocol):
    """The prefill workers."""

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        """Raises ServingError. Cancelling ends the prefill there."""
        ...

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        """Free the blocks of a handoff that has not been redeemed. No-op if there is none."""
        ...

    def give_back(self, handoff: KVHandoff, decode: WorkerId) -> None:
        """Free the blocks of a handoff, redeemed or not."""
        ...


class LinkProbe:
    """Makes handoffs between one decode worker and prefill workers."""

    def __init__(self, decode: WorkerId, engine: ProbingEngine, puller: ProbingPuller, prefill: ProbedPrefill) -> None:
        self._decode = decode
        self._engine = engine
        self._puller = puller
        self._prefill = prefill
        self._numbers = itertools.count()

    async def prove(self, prefill: WorkerId) -> None:
        """Make one handoff. The first one also connects the two engines, which takes seconds.

        Raises:
            ServingError: the prefill failed, or nothing was pulled.
        """
        await self._hand_off(prefill, SMALL_BLOCKS)

    async def measure(self, prefill: WorkerId) -> LinkSpeed | None:
        """The speed of a link that works. None if it could not be measured.

        Raises:
            ServingError: as `prove`.
        """
        samples = []
        for num_blocks in (*[SMALL_BLOCKS] * NUM_SMALL, *[self._engine.largest_probe_blocks] * NUM_LARGE):
            before = self._engine.transfers.num_recorded
            await self._hand_off(prefill, num_blocks)
            transfers = self._engine.transfers.since(before)
            if transfers:  # one per process of the engine; they read side by side
                num_bytes = sum(transfer.num_bytes for transfer in transfers)
                duration_s = max(transfer.duration_s for transfer in transfers)
                samples.append(LinkSample(num_blocks, num_bytes, duration_s))
        return fit(samples)

    async def _hand_off(self, prefill: WorkerId, num_blocks: int) -> None:
        number = next(self._numbers)
        request = self._engine.probe_request(RequestId(f"link-{prefill}-{self._decode}-{number}"), num_blocks)
        try:
            result = await self._prefill.prefill(prefill, request)
        except BaseException:
            self._prefill.withdraw(prefill, request.request_id)  # the result may have been on its way
            raise
        handoff = result.handoff if result else None
        if handoff is None:
            raise PrefillFailed(f"prefill worker {prefill} gave no handoff", prefill)
        try:
            if not await self._pull(request, handoff):
                raise PrefillFailed(f"nothing was pulled from prefill worker {prefill}", prefill)
        except BaseException:
            self._prefill.give_back(handoff, self._decode)
            raise

    async def _pull(self, request: GenerateRequest, handoff: KVHandoff) -> int:
        """Tokens that the decode engine has pulled."""
        buffer, num_pulled = TokenBuffer(1), 0
        try:
            await self._puller.start(request, handoff, buffer)
            while deltas := await buffer.next():
                num_pulled += sum(delta.prompt_sources.pulled for delta in deltas if delta.prompt_sources)
        finally:
            await self._puller.stop(request.request_id)
            UNCLAIMED_TOKENS.labels("probe").inc(buffer.num_put)
        return num_pulled
