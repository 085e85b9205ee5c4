"""The engine's raw outputs, request by request: a tap between vLLM's engine core and its output processor."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats, PrefillStats
from vllm.v1.serial_utils import MsgpackEncoder

from cluster.errors import InvalidRequest
from cluster.feed import DeltaSink
from cluster.types import FinishReason, PromptTokenSources, TokenDelta


class Running:
    """One request in the engine, and where its outputs go."""

    def __init__(self, request_id: str, num_sequences: int, sink: DeltaSink) -> None:
        self.request_id = request_id
        self.engine_request_id = ""
        """vLLM's internal id, set when the request is added."""
        self.sequence_ids: list[str] = []
        """vLLM's internal ids of the sequences, by index."""
        self.kv_transfer_params: dict[str, Any] | None = None
        self.num_open = num_sequences
        self.sink = sink


class TokenEngine(AsyncLLM):
    """AsyncLLM with its output processor replaced by the tap before its output loop starts."""

    def _run_output_handler(self) -> None:
        TokenTap.adopt(self)
        super()._run_output_handler()


class TokenTap(OutputProcessor):
    """vLLM's output processor (which keeps its statistics and ends sequences at stop strings), that also passes each
    raw output of the engine on to the request's sink.
    """

    def __init__(self, replaced: OutputProcessor) -> None:
        super().__init__(
            replaced.tokenizer,
            log_stats=replaced.log_stats,
            stream_interval=replaced.stream_interval,
            tracing_enabled=replaced.tracing_enabled,
        )
        self._hooks: TapHooks | None = None
        self._running: dict[str, Running] = {}
        self._sequences: dict[str, tuple[Running, int]] = {}
        self._idle: asyncio.Future[None] | None = None

    @classmethod
    def adopt(cls, llm: AsyncLLM) -> "TokenTap":
        if not isinstance(llm.output_processor, cls):
            llm.output_processor = cls(llm.output_processor)
        return llm.output_processor

    @classmethod
    def install(cls, llm: AsyncLLM, hooks: "TapHooks") -> "TokenTap":
        tap = cls.adopt(llm)
        tap._hooks = hooks
        return tap

    @property
    def num_running(self) -> int:
        return len(self._running)

    async def idle(self) -> None:
        """Wait until no request runs."""
        while self._running:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def open(self, request_id: str, num_sequences: int, sink: DeltaSink) -> Running:
        """Raises InvalidRequest for an id that is already running here."""
        if request_id in self._running:
            raise InvalidRequest(f"request {request_id} is already running")
        self._running[request_id] = running = Running(request_id, num_sequences, sink)
        return running

    def find(self, request_id: str) -> Running | None:
        return self._running.get(request_id)

    def close(self, running: Running) -> None:
        """Forget a request; what the engine still produces for it goes nowhere."""
        self._running.pop(running.request_id, None)
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        for sequence_id in running.sequence_ids:
            self._sequences.pop(sequence_id, None)

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: ParentRequest | None = None,
        request_index: int = 0,
        queue: RequestOutputCollector | None = None,
    ) -> None:
        super().add_request(request, prompt, parent_req, request_index, queue)
        running = self._running[str(request.external_req_id)]
        running.sequence_ids.append(request.request_id)
        self._sequences[request.request_id] = (running, request_index)

    def process_outputs(
        self,
        engine_core_outputs: list[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
        weight_version: str | None = None,
    ) -> OutputProcessorOutput:
        for output in engine_core_outputs:
            if sequence := self._sequences.get(output.request_id):
                running, index = sequence
                running.kv_transfer_params = output.kv_transfer_params or running.kv_transfer_params
                self._put(running, _to_delta(index, output))
            if output.prefill_stats is not None and self._hooks is not None:
                self._hooks.on_prompt(_to_sources(output.prefill_stats))
        processed = super().process_outputs(engine_core_outputs, engine_core_timestamp, iteration_stats, weight_version)
        self._end(processed.reqs_to_abort, FinishReason.STOP)
        if self._hooks is not None:
            self._hooks.on_step()
        return processed

    def abort_requests(self, request_ids: Any, internal: bool) -> list[str]:
        aborted = super().abort_requests(request_ids, internal)
        self._end(aborted, FinishReason.ABORT)
        return aborted

    def propagate_error(self, e: Exception) -> None:
        super().propagate_error(e)
        for running in list(self._running.values()):
            self.close(running)
            running.sink.fail(self._hooks.translated(e) if self._hooks else e)

    def _put(self, running: Running, delta: TokenDelta) -> None:
        running.sink.put(delta)
        if delta.finish_reason is not None:
            running.num_open -= 1
            if not running.num_open:
                self.close(running)

    def _end(self, internal_ids: list[str], reason: FinishReason) -> None:
        """End sequences that the engine core itself has not ended."""
        for internal_id in internal_ids:
            if sequence := self._sequences.pop(internal_id, None):
                running, index = sequence
                self._put(running, TokenDelta(index, [], reason))


class TapHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What the tap tells the adapter."""

    on_prompt: Callable[[PromptTokenSources], None]
    """An engine has processed a prompt."""
    on_step: Callable[[], None]
    """All outputs of a step have been put into their sinks."""
    translated: Callable[[BaseException], BaseException]
    """The engine's error, in our terms."""


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
