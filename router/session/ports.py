"""What a session needs from the rest of the cluster, as protocols. cluster/clients/ implements them over
connections; tests and the simulator bring their own.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.scheduler_events import SchedulerEvent
from kvtransfer.handoff import KVHandoff, PrefillResult


class SchedulerPort(Protocol):
    async def place(self, request: PlacementRequest) -> Placement | Rejection: ...

    def tell(self, event: SchedulerEvent) -> None:
        """Neither waits nor fails. The Scheduler hears it in the end, once and in order, unless it is replaced."""
        ...


class PrefillPort(Protocol):
    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        """Compute the prompt's KV and pin it for a handoff. Cancelling it leaves nothing pinned. None: it ended
        without a handoff, failed in the engine.

        Raises:
            WorkerUnreachable: the worker or its engine died.
        """
        ...

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        """Free the blocks of a handoff that no decode worker has redeemed. No-op where there is none."""
        ...


class DecodePort(Protocol):
    def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        """Generate, on a worker of any pool; pulling the prompt's KV when a handoff is given and still good. Closing
        it aborts on the engine.

        Raises:
            WorkerUnreachable: the worker or its engine died.
        """
        ...

    def distrust(self, worker: WorkerId) -> None:
        """Have a worker forget what it has cached."""
        ...
