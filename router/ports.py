"""What a session needs from the rest of the cluster, as protocols. cluster/handles.py implements them over Ray Serve;
tests and the simulator bring their own."""

from collections.abc import AsyncGenerator
from typing import Protocol

from cluster.types import (
    GenerateRequest,
    Placement,
    PlacementRequest,
    Rejection,
    RequestClosed,
    RequestId,
    TokenDelta,
    WorkerId,
    WorkerLost,
)
from kvtransfer.handoff import KVHandoff, PrefillResult


class SchedulerPort(Protocol):
    async def place(self, request: PlacementRequest) -> Placement | Rejection: ...

    async def tell(self, event: RequestClosed | WorkerLost) -> None: ...


class PrefillPort(Protocol):
    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        """Compute the prompt's KV and pin it for a hand-over. None: it ended without one, aborted or failed in the
        engine.

        Raises:
            WorkerUnreachable: the worker or its engine died.
        """
        ...

    async def abort(self, worker: WorkerId, request_id: RequestId) -> None:
        """End a running prefill; its `prefill` call then returns None. No-op when it is not running."""
        ...


class DecodePort(Protocol):
    def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        """Generate, pulling the prompt's KV when a hand-over is given. Closing it aborts on the engine.

        Raises:
            WorkerUnreachable: the worker or its engine died.
        """
        ...

    async def release(self, worker: WorkerId, request_id: RequestId, handoff: KVHandoff) -> None:
        """Free the blocks of a hand-over that will not be decoded."""
        ...
