"""The one adapter to vLLM's engine: an in-process AsyncLLM that takes token ids and gives token deltas.

Text is the ingress's business: prompts arrive as token ids and outputs leave as token ids, so engines detokenize only
where a stop string must end a sequence. The ingress rebuilds vLLM's own outputs from the deltas.
"""

import asyncio
import os
import random
import socket
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from vllm.config import KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, PrefillStats, SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from cluster.config import PoolConfig, resolve_model
from cluster.errors import InvalidRequest, PrefillFailed, WorkerUnreachable
from cluster.types import (
    FinishReason,
    GenerateRequest,
    Pool,
    PromptTokenSources,
    RequestId,
    TokenDelta,
    WorkerId,
    WorkerLoad,
)
from kvtransfer.handoff import PREFILL_REQUEST, KVHandoff, PrefillResult
from kvtransfer.topology import Device, ucx_environment

PROBE_BLOCKS = 2

_KV_ROLES = {Pool.PREFILL: "kv_producer", Pool.DECODE: "kv_consumer"}


def encode_sampling_params(params: SamplingParams) -> bytes:
    (frame,) = MsgpackEncoder().encode(params)
    return bytes(frame)


def decode_sampling_params(frame: bytes) -> SamplingParams:
    params: SamplingParams = MsgpackDecoder(SamplingParams).decode(frame)
    return params


class Engine:
    """One vLLM engine of a pool. Starting it takes seconds to minutes and blocks."""

    def __init__(
        self,
        pool: Pool,
        config: PoolConfig,
        *,
        worker: WorkerId,
        rank: int,
        node_ip: str,
        on_prompt: Callable[[PromptTokenSources], None],
    ) -> None:
        """`on_prompt` is called once per prompt that the engine has processed."""
        self._worker = worker
        os.environ.update(_environment(config, rank, node_ip))
        arguments = AsyncEngineArgs(
            **{
                **config.engine,
                "model": resolve_model(config.engine["model"]),
                "disable_log_stats": False,
                "kv_transfer_config": _kv_transfer_config(pool, config),
            }
        )
        self._llm = _TokenEngine.from_engine_args(arguments, stat_loggers=[_LoadLogger])
        self._tap = _TokenTap.install(self._llm, on_prompt)
        self._load = _LoadLogger.latest

    def probe_request(self, request_id: RequestId) -> GenerateRequest:
        """A prompt of a few KV blocks that no cache holds, answered with one token."""
        num_tokens = PROBE_BLOCKS * int(self._llm.vllm_config.cache_config.block_size) + 1
        vocab_size = int(self._llm.model_config.get_vocab_size())
        rng = random.Random(request_id)
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=[rng.randrange(vocab_size) for _ in range(num_tokens)],
            sampling_params=encode_sampling_params(params),
        )

    def load(self) -> WorkerLoad:
        return self._load()

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine core is gone; the worker cannot recover from it."""
        await self._llm.check_health()

    def shutdown(self) -> None:
        self._llm.shutdown()

    async def prefill(self, request: GenerateRequest) -> PrefillResult:
        """Compute the prompt and pin its KV blocks.

        Raises:
            InvalidRequest: the engine refuses the request.
            PrefillFailed: aborted, or an internal error of the engine.
            WorkerUnreachable: the engine died.
        """
        params = decode_sampling_params(request.sampling_params).clone()
        params.max_tokens, params.min_tokens, params.n = 1, 0, 1
        params.stop, params.detokenize = [], False
        params.logprobs = params.prompt_logprobs = params.structured_outputs = None
        sources = None
        outputs = await self._start(request, params, PREFILL_REQUEST)
        async for batch in self._batches(outputs):
            sources = next((d.prompt_sources for d in batch if d.prompt_sources), sources)
        try:
            handoff = KVHandoff.from_engine(outputs.kv_transfer_params)
        except ValueError as error:
            raise PrefillFailed(str(error), self._worker) from error
        return PrefillResult(handoff=handoff, prompt_sources=sources or PromptTokenSources(handoff.num_tokens, 0, 0))

    async def generate(self, request: GenerateRequest, handoff: KVHandoff | None) -> AsyncIterator[list[TokenDelta]]:
        """Generate; each item is what has been produced since the last one. Closing the iterator aborts.

        Raises:
            InvalidRequest: the engine refuses the request.
            WorkerUnreachable: the engine died.
        """
        params = decode_sampling_params(request.sampling_params)
        params.detokenize = bool(params.stop)
        outputs = await self._start(request, params, handoff.to_engine() if handoff else None)
        async for batch in self._batches(outputs):
            yield batch

    async def abort(self, request_id: RequestId) -> None:
        await self._llm.abort(request_id)

    async def release(self, request_id: RequestId, handoff: KVHandoff) -> None:
        """Tell the prefill engine that owns the blocks of a hand-over to free them now."""
        await self._llm.notify_kv_transfer_request_rejected(request_id, handoff.to_engine())

    async def _start(
        self, request: GenerateRequest, params: SamplingParams, kv_transfer_params: dict[str, Any] | None
    ) -> "_Outputs":
        # The engine's own collector is not read: FINAL_ONLY keeps it from building outputs for every step.
        params.output_kind = RequestOutputKind.FINAL_ONLY
        params.extra_args = {"kv_transfer_params": kv_transfer_params} if kv_transfer_params else None
        outputs = self._tap.open(request.request_id, params.n)
        try:
            collector = await self._llm.add_request(
                request.request_id,
                {"type": "token", "prompt_token_ids": request.prompt_token_ids},
                params,
                reasoning_ended=request.reasoning_ended,
                reasoning_parser_kwargs=request.reasoning_parser_kwargs,
            )
        except VLLMClientError as error:
            self._tap.close(request.request_id)
            raise InvalidRequest(str(error)) from error
        except EngineDeadError as error:
            self._tap.close(request.request_id)
            raise WorkerUnreachable(f"the engine of worker {self._worker} died", self._worker) from error
        outputs.engine_request_id = collector.request_id
        return outputs

    async def _batches(self, outputs: "_Outputs") -> AsyncIterator[list[TokenDelta]]:
        try:
            while not outputs.is_finished:
                yield await outputs.next_batch()
        except EngineDeadError as error:
            raise WorkerUnreachable(f"the engine of worker {self._worker} died", self._worker) from error
        finally:
            self._tap.close(outputs.request_id)
            if not outputs.is_finished and not self._llm.errored:
                await self._llm.abort(outputs.engine_request_id, internal=True)


class _Outputs:
    """What the engine produced for one request and nobody has read yet."""

    def __init__(self, request_id: str, num_sequences: int) -> None:
        self.request_id = request_id
        self.engine_request_id = ""
        """vLLM's internal id, set when the request is added."""
        self.kv_transfer_params: dict[str, Any] | None = None
        self._num_open = num_sequences
        self._deltas: deque[TokenDelta] = deque()
        self._error: BaseException | None = None
        self._ready = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Every sequence has ended and been read."""
        return not self._num_open and not self._deltas

    def put(self, delta: TokenDelta) -> None:
        self._deltas.append(delta)
        self._num_open -= delta.finish_reason is not None
        self._ready.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._ready.set()

    async def next_batch(self) -> list[TokenDelta]:
        await self._ready.wait()
        self._ready.clear()
        batch = list(self._deltas)
        self._deltas.clear()
        if not batch and self._error is not None:
            raise self._error
        if self._error is not None:
            self._ready.set()
        return batch


class _TokenEngine(AsyncLLM):
    """AsyncLLM with its output processor replaced by the tap before its output loop starts."""

    def _run_output_handler(self) -> None:
        _TokenTap.adopt(self)
        super()._run_output_handler()


class _TokenTap(OutputProcessor):
    """vLLM's output processor (which keeps its statistics and ends sequences at stop strings), that also passes each
    raw output of the engine on to the request's `_Outputs`.
    """

    def __init__(self, replaced: OutputProcessor) -> None:
        super().__init__(
            replaced.tokenizer,
            log_stats=replaced.log_stats,
            stream_interval=replaced.stream_interval,
            tracing_enabled=replaced.tracing_enabled,
        )
        self.on_prompt: Callable[[PromptTokenSources], None] | None = None
        self._opened: dict[str, _Outputs] = {}
        self._sequences: dict[str, tuple[_Outputs, int]] = {}

    @classmethod
    def adopt(cls, llm: AsyncLLM) -> "_TokenTap":
        if not isinstance(llm.output_processor, cls):
            llm.output_processor = cls(llm.output_processor)
        return llm.output_processor

    @classmethod
    def install(cls, llm: AsyncLLM, on_prompt: Callable[[PromptTokenSources], None]) -> "_TokenTap":
        tap = cls.adopt(llm)
        tap.on_prompt = on_prompt
        return tap

    def open(self, request_id: str, num_sequences: int) -> _Outputs:
        """Raises InvalidRequest for an id that is already running here."""
        if request_id in self._opened:
            raise InvalidRequest(f"request {request_id} is already running")
        self._opened[request_id] = outputs = _Outputs(request_id, num_sequences)
        return outputs

    def close(self, request_id: str) -> None:
        outputs = self._opened.pop(request_id, None)
        for internal_id in [i for i, (o, _) in self._sequences.items() if o is outputs]:
            del self._sequences[internal_id]

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
        queue: RequestOutputCollector | None = None,
    ) -> None:
        super().add_request(request, prompt, parent_req, request_index, queue)
        self._sequences[request.request_id] = (self._opened[str(request.external_req_id)], request_index)

    def process_outputs(
        self,
        engine_core_outputs: list[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
        weight_version: str | None = None,
    ) -> OutputProcessorOutput:
        for output in engine_core_outputs:
            if sequence := self._sequences.get(output.request_id):
                outputs, index = sequence
                outputs.kv_transfer_params = output.kv_transfer_params or outputs.kv_transfer_params
                outputs.put(_to_delta(index, output))
            if output.prefill_stats is not None and self.on_prompt is not None:
                self.on_prompt(_to_sources(output.prefill_stats))
        processed = super().process_outputs(engine_core_outputs, engine_core_timestamp, iteration_stats, weight_version)
        self._end(processed.reqs_to_abort, FinishReason.STOP)
        return processed

    def abort_requests(self, request_ids: Any, internal: bool) -> list[str]:
        aborted = super().abort_requests(request_ids, internal)
        self._end(aborted, FinishReason.ABORT)
        return aborted

    def propagate_error(self, e: Exception) -> None:
        super().propagate_error(e)
        for outputs in self._opened.values():
            outputs.fail(e)

    def _end(self, internal_ids: list[str], reason: FinishReason) -> None:
        """End sequences that the engine core itself has not ended."""
        for internal_id in internal_ids:
            if sequence := self._sequences.pop(internal_id, None):
                outputs, index = sequence
                outputs.put(TokenDelta(index, [], reason))


class _LoadLogger(StatLoggerBase):
    """Keeps the load after the engine's last step. vLLM constructs it, one per engine, so the process's one is kept
    here.
    """

    _load = WorkerLoad()

    @classmethod
    def latest(cls) -> WorkerLoad:
        return cls._load

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        pass

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            _LoadLogger._load = WorkerLoad(
                num_running=scheduler_stats.num_running_reqs,
                num_waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                kv_cache_usage=scheduler_stats.kv_cache_usage,
            )

    def log_engine_initialized(self) -> None:
        pass


def _to_delta(sequence: int, output: EngineCoreOutput) -> TokenDelta:
    logprobs = None
    if output.new_logprobs is not None or output.new_prompt_logprobs_tensors is not None:
        logprobs = tuple(bytes(frame) for frame in MsgpackEncoder().encode(_logprobs_only(output)))
    return TokenDelta(
        sequence,
        list(output.new_token_ids),
        finish_reason=None if output.finish_reason is None else FinishReason(str(output.finish_reason)),
        stop_reason=output.stop_reason,
        prompt_sources=_to_sources(output.prefill_stats) if output.prefill_stats else None,
        logprobs=logprobs,
    )


def _logprobs_only(output: EngineCoreOutput) -> EngineCoreOutput:
    return EngineCoreOutput("", [], output.new_logprobs, output.new_prompt_logprobs_tensors)


def _to_sources(stats: PrefillStats) -> PromptTokenSources:
    return PromptTokenSources(
        computed=stats.num_computed_tokens, local=stats.num_local_cached_tokens, pulled=stats.num_external_cached_tokens
    )


def _kv_transfer_config(pool: Pool, config: PoolConfig) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector="NixlConnector",
        kv_connector_module_path="kvtransfer.connector",
        kv_role=_KV_ROLES[pool],
        kv_buffer_device="cpu" if current_platform.is_cpu() else "cuda",
        kv_load_failure_policy="recompute",
        # New per process: a peer that knew this address before must not take a restarted engine for the old one.
        engine_id=str(uuid.uuid4()),
        kv_connector_extra_config={"kv_lease_duration": config.kv_lease_s},
    )


def _environment(config: PoolConfig, rank: int, node_ip: str) -> dict[str, str]:
    """For this process and the engine's, which inherit it. What the operator has set wins."""
    device = Device.CPU if current_platform.is_cpu() else Device.CUDA
    cores = config.cpu_cores[rank % len(config.cpu_cores)] if config.cpu_cores else "nobind"
    defaults = {
        **ucx_environment(device),
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "OMP_NUM_THREADS": str(config.cpu_threads),
    }
    # An address in use would hang the engine's start: the listener thread dies without a word.
    required = {"VLLM_NIXL_SIDE_CHANNEL_HOST": node_ip, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(_free_port(node_ip))}
    return {**defaults, **config.env, **required}


def _free_port(host: str) -> int:
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])
