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
    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult:
        """Compute the prompt's KV and pin it for a hand-over.

        Raises:
            WorkerUnreachable: the worker or its engine died.
            PrefillFailed: the engine ended the request without a hand-over (aborted, or an internal error).
        """
        ...

    async def abort(self, worker: WorkerId, request_id: RequestId) -> None:
        """End a running prefill; its `prefill` call then raises PrefillFailed. No-op when it is not running."""
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
