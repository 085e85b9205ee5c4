"""The engine's raw outputs, request by request: a tap between vLLM's engine core and its output processor."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats, PrefillStats
from vllm.v1.serial_utils import MsgpackEncoder

from cluster.errors import InvalidRequest
from cluster.types import FinishReason, PromptTokenSources, TokenDelta


class Outputs:
    """What the engine produced for one request and nobody has read yet."""

    def __init__(self, request_id: str, num_sequences: int) -> None:
        self.request_id = request_id
        self.engine_request_id = ""
        """vLLM's internal id, set when the request is added."""
        self.sequence_ids: list[str] = []
        """vLLM's internal ids of the sequences, by index."""
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


class TokenEngine(AsyncLLM):
    """AsyncLLM with its output processor replaced by the tap before its output loop starts."""

    def _run_output_handler(self) -> None:
        TokenTap.adopt(self)
        super()._run_output_handler()


class TokenTap(OutputProcessor):
    """vLLM's output processor (which keeps its statistics and ends sequences at stop strings), that also passes each
    raw output of the engine on to the request's `Outputs`.
    """

    def __init__(self, replaced: OutputProcessor) -> None:
        super().__init__(
            replaced.tokenizer,
            log_stats=replaced.log_stats,
            stream_interval=replaced.stream_interval,
            tracing_enabled=replaced.tracing_enabled,
        )
        self.on_prompt: Callable[[PromptTokenSources], None] | None = None
        self._opened: dict[str, Outputs] = {}
        self._sequences: dict[str, tuple[Outputs, int]] = {}

    @classmethod
    def adopt(cls, llm: AsyncLLM) -> "TokenTap":
        if not isinstance(llm.output_processor, cls):
            llm.output_processor = cls(llm.output_processor)
        return llm.output_processor

    @classmethod
    def install(cls, llm: AsyncLLM, on_prompt: Callable[[PromptTokenSources], None]) -> "TokenTap":
        tap = cls.adopt(llm)
        tap.on_prompt = on_prompt
        return tap

    @property
    def num_open(self) -> int:
        return len(self._opened)

    def open(self, request_id: str, num_sequences: int) -> Outputs:
        """Raises InvalidRequest for an id that is already running here."""
        if request_id in self._opened:
            raise InvalidRequest(f"request {request_id} is already running")
        self._opened[request_id] = outputs = Outputs(request_id, num_sequences)
        return outputs

    def sequence_ids(self, request_id: str) -> list[str]:
        """vLLM's internal ids of a request's sequences; none when it is not running."""
        outputs = self._opened.get(request_id)
        return list(outputs.sequence_ids) if outputs else []

    def close(self, outputs: Outputs) -> None:
        self._opened.pop(outputs.request_id, None)
        for sequence_id in outputs.sequence_ids:
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
        outputs = self._opened[str(request.external_req_id)]
        outputs.sequence_ids.append(request.request_id)
        self._sequences[request.request_id] = (outputs, request_index)

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
