"""Requests on vLLM's engine, and calls to the engine's processes. vLLM's errors leave this module as ours."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from cluster.engine.token_tap import RunningRequest, TokenEngine, TokenTap
from cluster.engine_core.engine_hints import extra_args, priority_of
from cluster.errors import EngineLost, InvalidRequest, ServingError, WorkerBusy, WorkerUnreachable
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import RequestId, WorkerId
from cluster.step_stream.buffer import DeltaSink


class RequestRunner:
    """The one place where requests enter and leave the engine, for prefills and generations alike."""

    def __init__(self, llm: TokenEngine, tap: TokenTap, worker: WorkerId, max_requests: int) -> None:
        self.worker = worker
        self._llm = llm
        self._tap = tap
        self._max_requests = max_requests

    @property
    def open_requests(self) -> list[RequestId]:
        return [RequestId(running.request_id) for running in self._tap.running]

    @property
    def num_open(self) -> int:
        return self._tap.num_running

    def find(self, request_id: RequestId) -> RunningRequest | None:
        return self._tap.find(request_id)

    async def start(
        self,
        request: GenerateRequest,
        params: SamplingParams,
        kv_transfer_params: dict[str, Any] | None,
        sink: DeltaSink,
    ) -> RunningRequest:
        """Add a request to the engine. Outputs go to `sink`.

        Raises:
            InvalidRequest: the engine refuses the request.
            WorkerBusy: the engine has its maximum of requests.
            WorkerUnreachable: the engine died.
        """
        # The engine's own collector is not read: FINAL_ONLY keeps it from building outputs for every step.
        params.output_kind = RequestOutputKind.FINAL_ONLY
        params.extra_args = extra_args(kv_transfer_params, request.tpot_s, request.rank, request.num_public_tokens)
        if self._tap.num_running >= self._max_requests:
            raise WorkerBusy(f"worker {self.worker} has {self._max_requests} requests", self.worker)
        running = self._tap.open(request.request_id, params, sink, request.is_verified)
        try:
            collector = await self._llm.add_request(
                request.request_id,
                _prompt(request),
                params,
                priority=priority_of(
                    request.first_token_within_s,
                    time.monotonic(),
                    is_pulled=(kv_transfer_params or {}).get("do_remote_prefill", False),
                ),
                reasoning_ended=request.reasoning_ended,
                reasoning_parser_kwargs=request.reasoning_parser_kwargs,
            )
        except BaseException as error:
            self._tap.close(running)
            if isinstance(error, asyncio.CancelledError):
                await self._llm.abort(request.request_id)
            raise self.translated(error) from error
        running.engine_request_id = collector.request_id
        return running

    async def stop(self, request_id: RequestId) -> None:
        """End a request. Its sink gets nothing more. No-op if the request does not run."""
        running = self._tap.find(request_id)
        if running is not None:
            self._tap.close(running)
            if not self._llm.errored:
                await self._llm.abort(running.engine_request_id, internal=True)

    async def abort(self, request_id: RequestId) -> None:
        """End a running request in the engine. A request that has just finished keeps its result, and with it its
        handoff: without the handoff, its KV blocks would stay pinned until the lease ends.
        """
        if self._llm.errored:
            return
        core = self._llm.engine_core
        running = self._tap.find(request_id)
        await core.abort_requests_async(list(running.sequence_ids) if running else [])
        # The core answers in order: with this answer, all outputs have arrived that it sent before the abort.
        await core.get_supported_tasks_async()
        await self._llm.abort(request_id)

    async def fail_all(self, error: WorkerUnreachable) -> None:
        """Fail all running requests, and abort them in the engine."""
        for running in self._tap.running:
            running.sink.fail(error)
            await self.stop(RequestId(running.request_id))

    async def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of `LeaseCalls` (kvtransfer/connector.py) in each rank of the engine; return one answer per
        rank. Raises ServingError.
        """
        return list(await self._answer(method, self._llm.collective_rpc(method, args=args)))

    async def call_core(self, method: str, *args: Any) -> Any:
        """Call what is installed in the engine's core (kvtransfer/forgetting.py). Raises ServingError."""
        return await self._answer(method, self._llm.engine_core.call_utility_async(method, *args))

    async def _answer(self, method: str, answering: Awaitable[Any]) -> Any:
        try:
            return await answering
        except EngineDeadError as error:
            raise self.translated(error) from error
        except Exception as error:  # vLLM passes errors of the engine's processes on as bare exceptions
            raise ServingError(f"{method} failed in the engine: {error}") from error

    def translated(self, error: BaseException) -> BaseException:
        """The error of cluster/errors.py for an error of vLLM's front."""
        match error:
            case EngineDeadError():
                return WorkerUnreachable(f"the engine of worker {self.worker} died", self.worker)
            case GracefulHTTPError():
                return WorkerBusy(str(error), self.worker)
            case VLLMClientError():
                return InvalidRequest(str(error))
            case _:
                return error

    def translated_while_running(self, error: BaseException) -> BaseException:
        """As `translated`, for a request that runs: the engine died with the request on it."""
        if isinstance(error, EngineDeadError):
            return EngineLost(f"the engine of worker {self.worker} died", self.worker)
        return self.translated(error)


def _prompt(request: GenerateRequest) -> dict[str, Any]:
    salt = {"cache_salt": request.cache_salt} if request.cache_salt else {}
    return {"type": "token", "prompt_token_ids": request.prompt_token_ids, **salt}
