"""The one adapter to vLLM's engine: an in-process AsyncLLM that takes token ids and gives token deltas.

Text is the ingress's business: prompts arrive as token ids and outputs leave as token ids, so engines detokenize only
where a stop string must end a sequence. The ingress rebuilds vLLM's own outputs from the deltas.
"""

import asyncio
import logging
import os
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from vllm import envs
from vllm.config import KVEventsConfig, KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.version import __version__ as vllm_version

from cluster.config.pools import DEFAULT_BLOCK_SIZE, PoolConfig
from cluster.config.repository import resolve_model
from cluster.engine.block_hashes import use_fixed_seed
from cluster.engine.environment import environment_of, reserve_port, transport_of
from cluster.engine.kv_event_feed import KvEventSockets
from cluster.engine.sampling_params import decode_sampling_params, encode_sampling_params
from cluster.engine.shape import shape_of
from cluster.engine.step_stats import EngineSteps
from cluster.engine.token_tap import RunningRequest, TapHooks, TokenEngine, TokenTap
from cluster.errors import EngineLost, InvalidRequest, ServingError, WorkerBusy, WorkerUnreachable
from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Pool, RequestId, WorkerId
from cluster.messages.reports import StepSample, WorkerLoad
from cluster.network.interface import Interface
from cluster.step_stream.buffer import DeltaSink, TokenBuffer, merged
from kvtransfer import verify
from kvtransfer.handoff import PREFILL_REQUEST, KVHandoff, PrefillResult
from kvtransfer.lease import LeaseEnd, LeaseId
from kvtransfer.tiers.arguments import kv_transfer_arguments
from kvtransfer.tiers.shared_memory import named_while_starting
from kvtransfer.transport.topology import Device

logger = logging.getLogger("baton.engine")

FORGET_ATTEMPTS = 20
FORGET_RETRY_S = 0.25


class Engine:
    """One vLLM engine of a pool. Starting it takes seconds to minutes and blocks."""

    def __init__(
        self,
        pool: Pool,
        config: PoolConfig,
        *,
        worker: WorkerId,
        rank: int,
        interface: Interface,
        on_prompt: Callable[[PromptTokenSources], None],
        on_step: Callable[[], None],
        on_ended_leases: Callable[[list[tuple[LeaseId, LeaseEnd]]], None],
    ) -> None:
        """`on_prompt` is called once per prompt that the engine has processed, `on_step` when all outputs of a step are
        in their sinks, `on_ended_leases` when the blocks of leases have been freed.
        """
        self._worker = worker
        self._max_requests = config.max_ongoing_requests
        self.transport = transport_of(config, _device(), interface)
        self._side_channel = reserve_port(interface.host)
        address = self._side_channel.getsockname()
        os.environ.update(environment_of(config, self.transport, _device(), rank, address))
        use_fixed_seed()
        engine_id = str(uuid.uuid4())
        self.kv_events = KvEventSockets()
        arguments = AsyncEngineArgs(
            **{
                **config.engine,
                "model": resolve_model(config.engine["model"]),
                "disable_log_stats": False,
                "kv_transfer_config": _kv_transfer_config(pool, config, engine_id),
                "kv_events_config": KVEventsConfig(**self.kv_events.arguments),
                "worker_extension_cls": "kvtransfer.connector.LeaseCalls",
            }
        )
        self._steps = EngineSteps(on_ended_leases)
        self.transfers = self._steps.transfers
        with named_while_starting(engine_id):
            self._llm = TokenEngine.from_engine_args(arguments, stat_loggers=[lambda *_: self._steps])
        # The ingress has tried each constraint; vLLM would do so once more here, between the tokens of all requests.
        self._llm.input_processor.structured_outputs_config = None
        hooks = TapHooks(
            on_prompt=on_prompt, on_step=on_step, on_orphan=self._reap_orphan, translated=self._failed_running
        )
        self._reaping: set[asyncio.Future[None]] = set()
        self._tap = TokenTap.install(self._llm, hooks)
        self.shape = shape_of(self._llm.vllm_config, pool, *_names(config))
        if self._block_size != config.engine.get("block_size", DEFAULT_BLOCK_SIZE):
            logger.error(
                "the engine has chosen KV blocks of %d tokens: set `engine.block_size` to it, or the ingress, which "
                "hashes other blocks, finds no prompt in any cache",
                self._block_size,
            )
        self._max_model_len = int(self._llm.model_config.max_model_len)
        envs.enable_envs_cache()  # vLLM reads its environment for every request and output

    @property
    def largest_probe_blocks(self) -> int:
        """KV blocks of the longest prompt that one step computes and that leaves half of the context free."""
        scheduling = self._llm.vllm_config.scheduler_config
        num_tokens = min(scheduling.max_num_batched_tokens, self._llm.model_config.max_model_len // 2)
        return int(num_tokens) // self._block_size

    def probe_request(self, request_id: RequestId, num_blocks: int) -> GenerateRequest:
        """A prompt of so many KV blocks that no cache holds, answered with one token."""
        num_tokens = num_blocks * self._block_size
        vocab_size = int(self._llm.model_config.get_vocab_size())
        rng = random.Random(request_id)
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=[rng.randrange(vocab_size) for _ in range(num_tokens)],
            sampling_params=encode_sampling_params(params),
        )

    @property
    def _block_size(self) -> int:
        return int(self._llm.vllm_config.cache_config.block_size)

    async def warm_up(self) -> None:
        """Have vLLM compile what it otherwise compiles with the first request for log-probabilities, which would hold
        up all others for seconds. Raises ServingError.
        """
        params = encode_sampling_params(SamplingParams(temperature=0.0, max_tokens=1, logprobs=verify.NUM_TOP))
        request = GenerateRequest(request_id=RequestId("warm-up"), prompt_token_ids=[0], sampling_params=params)
        feed = TokenBuffer(1)
        await self.start(request, None, feed)
        while await feed.next():
            pass
        self._steps.take_samples()  # no other step takes so long

    def load(self) -> WorkerLoad:
        return msgspec.structs.replace(self._steps.load, num_open=self._tap.num_running)

    @property
    def open_requests(self) -> list[RequestId]:
        """What has been taken and has not ended."""
        return [RequestId(running.request_id) for running in self._tap.running]

    def take_samples(self) -> list[StepSample]:
        """Of the steps since the last time."""
        return self._steps.take_samples()

    def pull_seconds(self, request_id: RequestId) -> float | None:
        """How long the blocks of a request took to come, told once, from its first token on. None: nothing came."""
        running = self._tap.find(request_id)
        return self._steps.pulls.pop(running.sequence_ids[0]) if running and running.sequence_ids else None

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine core is gone; the worker cannot recover from it."""
        await self._llm.check_health()

    async def answer(self) -> None:
        """Returns when the engine core answers: after the step that it is in."""
        await self._llm.engine_core.get_supported_tasks_async()

    async def give_up_running(self) -> None:
        """The engine hangs: fail what runs on it with EngineLost, and have it aborted if the engine goes on."""
        await self._end_running(EngineLost(f"the engine of worker {self._worker} hangs", self._worker))

    async def hand_back_running(self) -> None:
        """The worker leaves: fail what runs on it with WorkerUnreachable."""
        await self._end_running(WorkerUnreachable(f"worker {self._worker} leaves", self._worker))

    async def _end_running(self, error: WorkerUnreachable) -> None:
        for running in self._tap.running:
            running.sink.fail(error)
            await self.stop(RequestId(running.request_id))

    async def drained(self) -> None:
        """Wait until no request runs."""
        await self._tap.idle()

    def shutdown(self) -> None:
        self._llm.shutdown()
        self.kv_events.close()

    async def prefill(self, request: GenerateRequest) -> tuple[PrefillResult, float] | None:
        """Compute the prompt and pin its KV blocks; also gives the moment from which they are pinned, in seconds of
        `time.monotonic`. None: it ended without a handoff, aborted or failed in the engine.

        Raises:
            InvalidRequest: the engine refuses the request.
            WorkerUnreachable: the engine died.
        """
        params = decode_sampling_params(request.sampling_params)
        num_left = None if params.max_tokens is None else params.max_tokens - request.num_generated
        params.max_tokens, params.min_tokens, params.n = 1, 0, 1
        params.stop, params.detokenize = [], False
        params.logprobs = verify.NUM_TOP if request.is_verified else None
        params.prompt_logprobs = params.structured_outputs = None
        feed = TokenBuffer(1)
        running = await self._start(request, params, PREFILL_REQUEST, feed)
        deltas: list[TokenDelta] = []
        try:
            while batch := await feed.next():
                deltas += batch
        finally:
            await self.stop(request.request_id)
        if running.kv_transfer_params is None or not deltas:
            return None
        handoff = KVHandoff.from_engine(self._worker, running.kv_transfer_params)
        # One token was asked for, so the engine always finds the end of the length.
        num_prompt = len(request.prompt_token_ids)
        is_last = num_left == 1 or num_prompt + 1 >= self._max_model_len
        first = merged(deltas)
        result = PrefillResult(handoff=handoff, first=first)
        if first.finish_reason is FinishReason.LENGTH and not (is_last and result.follows(num_prompt)):
            first = msgspec.structs.replace(first, finish_reason=None)
            result = msgspec.structs.replace(result, first=first)
        return result, running.finished_at

    async def start(
        self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink, pull_deadline: float = 0.0
    ) -> None:
        """Generate into `sink`, until every sequence has a finish reason or `stop` is called. The sink fails with
        EngineLost when the engine dies. A pull that ends after `pull_deadline` (seconds of `time.monotonic`,
        needed with a handoff) is not used.

        Raises:
            InvalidRequest: the engine refuses the request.
            WorkerBusy: it has as many as it takes.
            WorkerUnreachable: it died.
        """
        params = decode_sampling_params(request.sampling_params)
        params.detokenize = bool(params.stop)
        if params.max_tokens is not None:
            params.max_tokens -= request.num_generated
        if request.is_verified:
            params.logprobs = verify.NUM_TOP
        await self._start(request, params, handoff.to_engine(pull_deadline) if handoff else None, sink)

    async def stop(self, request_id: RequestId) -> None:
        """End a request and forget it: its sink gets nothing more. No-op when it is not running."""
        running = self._tap.find(request_id)
        if running is not None:
            self._tap.close(running)
            if not self._llm.errored:
                await self._llm.abort(running.engine_request_id, internal=True)

    async def abort(self, request_id: RequestId) -> None:
        """End a running request. One that has just finished in the engine keeps its result, and with it its handoff:
        dropping that would leave the KV blocks pinned until their lease ends.
        """
        if self._llm.errored:
            return
        core = self._llm.engine_core
        running = self._tap.find(request_id)
        await core.abort_requests_async(list(running.sequence_ids) if running else [])
        # The core answers in order: once it answers this, all that it sent before it took the abort has arrived.
        await core.get_supported_tasks_async()
        await self._llm.abort(request_id)

    async def end_leases(self, leases: list[LeaseId]) -> list[LeaseId]:
        """Free the blocks of these leases now; returns those that are over already. Raises ServingError."""
        over: list[list[LeaseId]] = await self._call("baton_end_leases", leases)
        return over[0]

    async def extend_leases(self, leases: list[LeaseId], seconds: float) -> list[LeaseId]:
        """Keep the blocks of these leases for so long from now; returns those that the engine still keeps. Raises
        ServingError.
        """
        kept: list[list[LeaseId]] = await self._call("baton_extend_leases", leases, seconds)
        return [lease for lease in leases if all(lease in of_rank for of_rank in kept)]

    async def renew_pulls(self, deadlines: dict[RequestId, float]) -> dict[RequestId, float]:
        """Until when pulls count now, in seconds of `time.monotonic`; returns for how many seconds each has been
        reading, 0 when it is not. Raises ServingError.
        """
        running = {request_id: self._tap.find(request_id) for request_id in deadlines}
        engine_ids = {r: found.sequence_ids[0] for r, found in running.items() if found and found.sequence_ids}
        seconds: list[dict[str, float]] = await self._call(
            "baton_renew_pulls", {engine_id: deadlines[r] for r, engine_id in engine_ids.items()}
        )
        return {r: max(of_rank[engine_id] for of_rank in seconds) for r, engine_id in engine_ids.items()}

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache and the tiers: what they hold cannot be trusted. Running requests are computed anew.
        Raises ServingError where the engine cannot, because something is being pulled all the time.
        """
        for _ in range(FORGET_ATTEMPTS):
            try:
                await self._llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
                return
            except EngineDeadError as error:
                raise self._translated(error) from error
            except Exception as error:  # vLLM's RuntimeError, which comes as a bare one from the engine's process
                logger.info("the prefix cache cannot be emptied yet: %s", error)
                await asyncio.sleep(FORGET_RETRY_S)
        raise ServingError(f"worker {self._worker} could not empty its prefix cache")

    async def _call(self, method: str, *args: Any) -> list[Any]:
        """Of kvtransfer/connector.py; one answer per rank of the engine. Raises ServingError."""
        try:
            return list(await self._llm.collective_rpc(method, args=args))
        except EngineDeadError as error:
            raise self._translated(error) from error
        except Exception as error:  # what the engine's process raises comes as a bare one
            raise ServingError(f"{method} failed in the engine: {error}") from error

    def _reap_orphan(self, lease: LeaseId) -> None:
        """A prefill ended that nobody waits for any more."""
        task = asyncio.ensure_future(self._end_orphan(lease))
        self._reaping.add(task)
        task.add_done_callback(self._reaping.discard)

    async def _end_orphan(self, lease: LeaseId) -> None:
        with suppress(ServingError):  # a dead engine keeps nothing
            await self.end_leases([lease])

    async def _start(
        self,
        request: GenerateRequest,
        params: SamplingParams,
        kv_transfer_params: dict[str, Any] | None,
        sink: DeltaSink,
    ) -> RunningRequest:
        # The engine's own collector is not read: FINAL_ONLY keeps it from building outputs for every step.
        params.output_kind = RequestOutputKind.FINAL_ONLY
        params.extra_args = {"kv_transfer_params": kv_transfer_params} if kv_transfer_params else None
        if self._tap.num_running >= self._max_requests:
            raise WorkerBusy(f"worker {self._worker} has {self._max_requests} requests", self._worker)
        running = self._tap.open(request.request_id, params, sink, request.is_verified)
        try:
            collector = await self._llm.add_request(
                request.request_id,
                _prompt(request),
                params,
                reasoning_ended=request.reasoning_ended,
                reasoning_parser_kwargs=request.reasoning_parser_kwargs,
            )
        except BaseException as error:
            self._tap.close(running)
            if isinstance(error, asyncio.CancelledError):
                await self._llm.abort(request.request_id)
            raise self._translated(error) from error
        running.engine_request_id = collector.request_id
        return running

    def _failed_running(self, error: BaseException) -> BaseException:
        """What an error of the engine is for a request that runs on it."""
        if isinstance(error, EngineDeadError):
            return EngineLost(f"the engine of worker {self._worker} died", self._worker)
        return self._translated(error)

    def _translated(self, error: BaseException) -> BaseException:
        match error:
            case EngineDeadError():
                return WorkerUnreachable(f"the engine of worker {self._worker} died", self._worker)
            case GracefulHTTPError():
                return WorkerBusy(str(error), self._worker)
            case VLLMClientError():
                return InvalidRequest(str(error))
            case _:
                return error


def _prompt(request: GenerateRequest) -> dict[str, Any]:
    salt = {"cache_salt": request.cache_salt} if request.cache_salt else {}
    return {"type": "token", "prompt_token_ids": request.prompt_token_ids, **salt}


def _kv_transfer_config(pool: Pool, config: PoolConfig, engine_id: str) -> KVTransferConfig:
    return KVTransferConfig(**kv_transfer_arguments(pool, config, _device(), engine_id))


def _device() -> Device:
    return Device.CPU if current_platform.is_cpu() else Device.CUDA


def _names(config: PoolConfig) -> tuple[str, str, str]:
    """What an engine's speed depends on, beside how it is configured."""
    is_cpu = current_platform.is_cpu()
    device = f"cpu-x{config.cpu_threads}" if is_cpu else str(current_platform.get_device_name())
    return config.engine["model"], device, f"vllm-{vllm_version}"
