"""What a session needs from the rest of the cluster, as protocols. cluster/clients/ implements the ports over
connections; the simulator and tests have implementations of their own.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

import msgspec

from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest, Rejection
from cluster.messages.retention import ToolWait
from cluster.messages.scheduler_events import SchedulerEvent
from cluster.slo import SloConfig
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks
from router.session.receipt import RequestObserver


class SchedulerPort(Protocol):
    async def place(self, request: PlacementRequest) -> Placement | Rejection: ...

    def when_to_pause(self, request_id: RequestId, pause: Callable[[int], None]) -> None:
        """Call `pause` with the number of an attempt when the Scheduler wants that attempt of the request to pause. The
        call may come late, twice or never, but not after the RequestClosed of the request.
        """
        ...

    def tell(self, event: SchedulerEvent) -> None:
        """Send an event without waiting; this never fails. The Scheduler gets each event once and in order, unless the
        Scheduler is replaced.
        """
        ...


class PrefillPort(Protocol):
    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        """Compute the KV blocks of the prompt and pin them for a handoff. None if the prefill failed in the engine. A
        call that is cancelled leaves nothing pinned.

        Raises:
            WorkerUnreachable: the worker or its engine died.
        """
        ...

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        """Free the KV blocks of a handoff that no decode worker has redeemed. Does nothing without such a handoff."""
        ...


class DecodePort(Protocol):
    def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        """Generate on a worker of any pool. The worker pulls the KV blocks of the prompt if a valid handoff is given.
        Closing the generator aborts the request on the engine.

        Raises:
            WorkerUnreachable: the worker or its engine died.
            RequestPaused: `pause` was called.
        """
        ...

    def pause(self, worker: WorkerId, request_id: RequestId) -> None:
        """End the stream of a request on a worker: its reader gets what has come so far, and then RequestPaused. Does
        nothing for a request without an open stream.
        """
        ...

    def await_tools(self, worker: WorkerId, wait: ToolWait) -> None:
        """Tell a worker of any pool that an answer has called tools. Does nothing without a connection to the
        worker.
        """
        ...

    def forget(self, worker: WorkerId, blocks: PulledBlocks | None) -> None:
        """Have a worker of any pool drop cached KV blocks, all of them if `blocks` is None. Does nothing without a
        connection to the worker.
        """
        ...


class SessionPorts(msgspec.Struct, frozen=True, kw_only=True):
    scheduler: SchedulerPort
    prefill: PrefillPort
    decode: DecodePort
    observer: RequestObserver
    slo: SloConfig = SloConfig()
    """The objectives of the model, of requests that end before a placement has told them theirs."""
