"""The session's ports over Ray Serve handles. Translates Ray's failures into cluster/errors.py, and nothing else.

Calls are made outside the HTTP request's context. Inside it, Serve gives all calls of one request one id, which its
router cannot tell apart when they run side by side, and cancels them by itself when the client leaves: a prefill that
finishes at that moment would lose its hand-over. Who cancels what, and when, is the session's decision.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address

from cluster.errors import Overloaded, ServingError, WorkerFailed, WorkerUnreachable
from cluster.metrics import Scrape
from cluster.types import (
    ClusterView,
    GenerateRequest,
    Placement,
    PlacementRequest,
    Rejection,
    ReportReply,
    RequestClosed,
    RequestId,
    TokenDelta,
    WorkerId,
    WorkerLost,
    WorkerReport,
)
from kvtransfer.handoff import KVHandoff, PrefillResult

T = TypeVar("T")

logger = logging.getLogger("baton.handles")

_SCHEDULER_TIMEOUT_S = 5.0
"""A call to a Scheduler that is away would wait for its successor: better to refuse a request, or to close without."""
_SCRAPE_TIMEOUT_S = 5.0


class SchedulerHandle:
    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def place(self, request: PlacementRequest) -> Placement | Rejection:
        try:
            return await self._ask(self._handle.place, request)
        except WorkerFailed as error:
            raise Overloaded("the Scheduler is away", _SCHEDULER_TIMEOUT_S) from error

    async def tell(self, event: RequestClosed | WorkerLost) -> None:
        await self._ask(self._handle.tell, event)

    async def report(self, report: WorkerReport) -> ReportReply:
        return await self._ask(self._handle.report, report)

    async def view(self) -> ClusterView:
        return await self._ask(self._handle.view)

    async def _ask(self, method: DeploymentHandle, *args: object) -> Any:
        with _translated("scheduler"):
            async with asyncio.timeout(_SCHEDULER_TIMEOUT_S):
                return await _remote(method, *args)


class ClusterHandle:
    """The whole application, as an ingress replica sees it."""

    def __init__(self, scheduler: SchedulerHandle, deployments: list[DeploymentHandle]) -> None:
        self._scheduler = scheduler
        self._deployments = deployments

    async def view(self) -> ClusterView:
        return await self._scheduler.view()

    async def scrape(self) -> list[Scrape]:
        """The metrics of every deployment whose replicas answer in time."""
        own = serve.get_replica_context()
        ingress = serve.get_deployment_handle(own.deployment, app_name=own.app_name)
        answers = await asyncio.gather(*(_scrape_all(handle) for handle in (ingress, *self._deployments)))
        return [scrape for answer in answers for scrape in answer]


class PrefillHandle:
    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        return await _call(_remote(_to(self._handle, worker).prefill, request), worker)

    async def abort(self, worker: WorkerId, request_id: RequestId) -> None:
        await _call(_remote(_to(self._handle, worker).abort, request_id), worker)


class DecodeHandle:
    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        stream = _remote(_to(self._handle, worker).options(stream=True).generate, request, handoff)
        try:
            with _translated(worker):
                async for deltas in stream:
                    for delta in deltas:
                        yield delta
        finally:
            stream.cancel()

    async def release(self, worker: WorkerId, request_id: RequestId, handoff: KVHandoff) -> None:
        await _call(_remote(_to(self._handle, worker).release, request_id, handoff), worker)


def own_worker_id() -> WorkerId:
    """The id of the Serve replica that this process is."""
    return WorkerId(serve.get_replica_context().replica_id.unique_id)


def own_rank() -> int:
    """This replica's index among the replicas of its deployment."""
    return int(serve.get_replica_context().rank.rank)


def own_node_ip() -> str:
    return str(get_node_ip_address())


async def _scrape_all(handle: DeploymentHandle) -> list[Scrape]:
    try:
        answers = await handle.broadcast("scrape").results_async(timeout_s=_SCRAPE_TIMEOUT_S, return_exceptions=True)
    except (TimeoutError, RayError, RayServeException) as error:
        logger.warning("no metrics of %s: %s", handle.deployment_name, type(error).__name__)
        return []
    return [answer for answer in answers if isinstance(answer, Scrape)]


def _to(handle: DeploymentHandle, worker: WorkerId) -> DeploymentHandle:
    return handle.options(session_id=worker)


def _remote(method: DeploymentHandle, *args: object) -> Any:
    return Context().run(method.remote, *args)


async def _call(response: Awaitable[T], worker: str) -> T:
    with _translated(worker):
        return await response


@contextmanager
def _translated(worker: str) -> Iterator[None]:
    try:
        yield
    except RayTaskError as error:
        raise _serving_error(error.cause, worker) from error
    except (RayError, RayServeException, TimeoutError) as error:
        raise WorkerUnreachable(f"worker {worker} is unreachable: {type(error).__name__}", worker) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # the client left
        raise WorkerUnreachable(f"worker {worker} cancelled the call", worker) from error


def _serving_error(cause: Any, worker: str) -> ServingError:
    if isinstance(cause, ServingError):
        return cause
    return WorkerFailed(f"worker {worker} failed: {type(cause).__name__}: {cause}", worker)
