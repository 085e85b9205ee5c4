"""The link probe: handoffs of a decode worker's own, to prove that a link works and to measure what it carries.

A prompt that no cache holds is computed on the prefill worker and pulled by the decode engine, which answers it with
one token: what a request would do. The times are those of the decode engine's own telemetry, so neither worker's
compute is in them. Whatever a handoff that fails has pinned is given back.
"""

import itertools
from typing import Protocol

from cluster.engine.port import ProbingEngine
from cluster.errors import PrefillFailed
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.transport import LinkSpeed
from cluster.step_stream.buffer import DeltaSink, TokenBuffer
from decode.link_speed import LinkSample, fit
from kvtransfer.handoff import KVHandoff, PrefillResult

SMALL_BLOCKS = 2
NUM_SMALL, NUM_LARGE = 6, 3
"""Samples per size. The engine sees a transfer's end only when it looks, which matters more for the small ones; other
traffic may spoil some of either.
"""


class ProbingPuller(Protocol):
    """As requests pull (decode/kv_puller.py)."""

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
        """Free the blocks of a handoff that has not been redeemed. No-op where there is none."""
        ...

    def give_back(self, handoff: KVHandoff, decode: WorkerId) -> None:
        """Free the blocks of a handoff, redeemed or not."""
        ...


class LinkProbe:
    def __init__(self, decode: WorkerId, engine: ProbingEngine, puller: ProbingPuller, prefill: ProbedPrefill) -> None:
        self._decode = decode
        self._engine = engine
        self._puller = puller
        self._prefill = prefill
        self._numbers = itertools.count()

    async def prove(self, prefill: WorkerId) -> None:
        """One handoff. It also makes the connection between the two engines, which takes the first one seconds.

        Raises:
            ServingError: the prefill failed, or nothing was pulled.
        """
        await self._hand_over(prefill, SMALL_BLOCKS)

    async def measure(self, prefill: WorkerId) -> LinkSpeed | None:
        """The speed of a link that works. None: it could not be told.

        Raises:
            ServingError: as `prove`.
        """
        samples = []
        for num_blocks in (*[SMALL_BLOCKS] * NUM_SMALL, *[self._engine.largest_probe_blocks] * NUM_LARGE):
            before = self._engine.transfers.num_recorded
            await self._hand_over(prefill, num_blocks)
            transfers = self._engine.transfers.since(before)
            if transfers:  # of all the engine's processes, which read side by side
                num_bytes = sum(transfer.num_bytes for transfer in transfers)
                duration_s = max(transfer.duration_s for transfer in transfers)
                samples.append(LinkSample(num_blocks, num_bytes, duration_s))
        return fit(samples)

    async def _hand_over(self, prefill: WorkerId, num_blocks: int) -> None:
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
        """How many tokens the decode engine has pulled."""
        feed, num_pulled = TokenBuffer(1), 0
        try:
            await self._puller.start(request, handoff, feed)
            while deltas := await feed.next():
                num_pulled += sum(delta.prompt_sources.pulled for delta in deltas if delta.prompt_sources)
        finally:
            await self._puller.stop(request.request_id)
        return num_pulled
