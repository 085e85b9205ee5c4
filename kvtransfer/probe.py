"""The link probe: hand-overs of a decode worker's own, to prove that a link works and to measure what it carries.

A prompt that no cache holds is computed on the prefill worker and pulled by the decode engine, which answers it with
one token: what a request would do. The times are those of the decode engine's own telemetry, so neither worker's
compute is in them. Whatever a hand-over that fails has pinned is given back.
"""

import asyncio
import itertools
from contextlib import suppress
from typing import Protocol

from cluster.errors import PrefillFailed, ServingError
from cluster.feed import DeltaSink, Feed
from cluster.types import GenerateRequest, LinkSpeed, RequestId, WorkerId
from kvtransfer.handoff import KVHandoff, PrefillResult
from kvtransfer.link_speed import Sample, fit
from kvtransfer.telemetry import TransferLog

SMALL_BLOCKS = 2
NUM_SMALL, NUM_LARGE = 6, 3
"""Samples per size. The engine sees a transfer's end only when it looks, which matters more for the small ones; other
traffic may spoil some of either.
"""
GIVE_BACK_TIMEOUT_S = 2.0
"""For a prefill worker that hangs: its lease ends what could not be given back."""


class ProbingEngine(Protocol):
    """The decode worker's engine."""

    transfers: TransferLog

    @property
    def largest_probe_blocks(self) -> int:
        """Of the longest prompt that disturbs others no more than a usual one."""
        ...

    def probe_request(self, request_id: RequestId, num_blocks: int) -> GenerateRequest:
        """A prompt of so many KV blocks that no cache holds, answered with one token."""
        ...

    async def start(self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink) -> None: ...

    async def stop(self, request_id: RequestId) -> None: ...

    async def release(self, request_id: RequestId, handoff: KVHandoff) -> None:
        """Free the blocks of a hand-over that will not be pulled."""
        ...


class ProbedPrefill(Protocol):
    """The prefill workers."""

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None: ...

    async def abort(self, worker: WorkerId, request_id: RequestId) -> None: ...


class LinkProbe:
    def __init__(self, decode: WorkerId, engine: ProbingEngine, prefill: ProbedPrefill) -> None:
        self._decode = decode
        self._engine = engine
        self._prefill = prefill
        self._numbers = itertools.count()

    async def prove(self, prefill: WorkerId) -> None:
        """One hand-over. It also makes the connection between the two engines, which takes the first one seconds.

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
                samples.append(Sample(num_blocks, num_bytes, duration_s))
        return fit(samples)

    async def _hand_over(self, prefill: WorkerId, num_blocks: int) -> None:
        number = next(self._numbers)
        request = self._engine.probe_request(RequestId(f"link-{prefill}-{self._decode}-{number}"), num_blocks)
        prefilling = asyncio.ensure_future(self._prefill.prefill(prefill, request))
        try:
            # Shielded: a result that is lost on its way would leave its blocks pinned.
            result = await asyncio.shield(prefilling)
            if result is None:
                raise PrefillFailed(f"prefill worker {prefill} gave no hand-over", prefill)
            if not await self._pull(request, result.handoff):
                raise PrefillFailed(f"nothing was pulled from prefill worker {prefill}", prefill)
        except BaseException:
            await self._give_back(prefill, request.request_id, prefilling)
            raise

    async def _pull(self, request: GenerateRequest, handoff: KVHandoff) -> int:
        """How many tokens the decode engine has pulled."""
        feed, num_pulled = Feed(1), 0
        try:
            await self._engine.start(request, handoff, feed)
            while deltas := await feed.next():
                num_pulled += sum(delta.prompt_sources.pulled for delta in deltas if delta.prompt_sources)
        finally:
            await self._engine.stop(request.request_id)
        return num_pulled

    async def _give_back(
        self, prefill: WorkerId, request_id: RequestId, prefilling: asyncio.Future[PrefillResult | None]
    ) -> None:
        with suppress(ServingError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_TIMEOUT_S):
                if not prefilling.done():
                    await self._prefill.abort(prefill, request_id)
                if (result := await prefilling) is not None:
                    await self._engine.release(request_id, result.handoff)
