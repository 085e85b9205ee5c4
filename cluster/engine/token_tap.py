"""TokenTap: passes the raw outputs of vLLM's engine core to the sinks of their requests, before vLLM's own output
processor sees them. Most outputs come through the token pipe and do not reach that processor at all
(cluster/engine_scheduler/piping_scheduler.py says which).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import (
    OutputProcessor,
    OutputProcessorOutput,
    RequestOutputCollector,
)
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats

from cluster.engine.outputs.deltas import delta_of, piped_delta
from cluster.engine.statistics.skipped_tokens import SkippedTokens
from cluster.engine_core.grammar_budget import GrammarEnd
from cluster.engine_core.token_pipe import PipedOutput, PipedStep, is_piped
from cluster.errors import ConstraintFailed, InvalidRequest, Overloaded, ServingError
from cluster.messages.generation import FinishReason, PromptTokenSources, TokenDelta
from cluster.step_stream.buffer import DeltaSink
from kvtransfer.lease_terms import LeaseId

logger = logging.getLogger("baton.engine")

ITL_STEPS = 16
"""Of this many engine steps that come through the pipe, vLLM's inter-token latency is observed in one. Fewer cost CPU
time per token; more make the latency that vLLM reports a smaller sample.
"""
GRAMMAR_ENDS: dict[object, str] = {
    GrammarEnd.TOO_SLOW.value: "the answer was ended: following its schema or grammar takes too long per token",
    GrammarEnd.TOO_COMPLEX.value: "the answer was ended: its schema or grammar allows too many things at once",
    GrammarEnd.NOT_COMPILED.value: "the schema or grammar of the answer could not be compiled",
    GrammarEnd.COMPILED_TOO_LATE.value: "the schema or grammar of the answer could not be compiled in time",
}
"""Error messages for the client, by the stop reason of the engine's last output."""
CROWDED_RETRY_S = 2.0
"""Retry-After of a request that found no time left by other requests' schemas, in seconds. Those schemas end within a
few tokens. Sooner may still meet the last of them; later only waits.
"""


class RunningRequest:
    """One request in the engine, and where its outputs go."""

    def __init__(self, request_id: str, params: SamplingParams, sink: DeltaSink, is_verified: bool) -> None:
        self.request_id = request_id
        self.reports_top = is_verified
        """True if the first delta must carry the most likely tokens. Then Baton asked for log-probabilities, not a
        client.
        """
        self.is_piped = is_piped(params)
        self.takes_handoff = bool(((params.extra_args or {}).get("kv_transfer_params") or {}).get("do_remote_prefill"))
        """True if the prompt's KV is pulled or computed, and never comes from this engine's tiers."""
        self.engine_request_id = ""
        """vLLM's internal id, set when the request is added."""
        self.sequence_ids: list[str] = []
        """vLLM's internal ids of the sequences, by index."""
        self.kv_transfer_params: dict[str, Any] | None = None
        self.finished_at = 0.0
        """Time of the last output, in seconds of `time.monotonic` in the engine."""
        self.num_open = params.n
        self.sink = sink


class _Sequence:
    """One sequence of a running request."""

    __slots__ = ("begun_at_step", "early", "has_begun", "index", "running")

    def __init__(self, running: RunningRequest, index: int) -> None:
        self.running = running
        self.index = index
        self.has_begun = False
        """Whether the first output has come, which takes vLLM's way. All later ones of a piped request take the
        pipe.
        """
        self.begun_at_step = 0
        """Number of the engine's step, among those that came through the pipe, before which the first output came."""
        self.early: list[TokenDelta] = []
        """What has come through the pipe before the first output."""

    @property
    def is_in_pipe(self) -> bool:
        """Whether the tokens of the next output take the pipe."""
        return self.has_begun and self.running.is_piped


class TokenEngine(AsyncLLM):
    """AsyncLLM with its output processor replaced by the tap before its output loop starts."""

    def _run_output_handler(self) -> None:
        TokenTap.adopt(self)
        super()._run_output_handler()


class TokenTap(OutputProcessor):
    """vLLM's output processor, which also passes each raw output of the engine to the sink of its request.

    vLLM's part keeps the engine's statistics and ends sequences at stop strings, which costs ten microseconds a token.
    It gets what comes on vLLM's way, which of most requests is the first and the last output. Tokens that come through
    the pipe are only counted.
    """

    def __init__(self, replaced: OutputProcessor) -> None:
        super().__init__(
            replaced.tokenizer,
            log_stats=replaced.log_stats,
            stream_interval=replaced.stream_interval,
            tracing_enabled=replaced.tracing_enabled,
        )
        self._hooks: TapHooks | None = None
        self._running: dict[str, RunningRequest] = {}
        self._sequences: dict[str, _Sequence] = {}
        self._idle: asyncio.Future[None] | None = None
        self._num_steps = 0
        self._skipped = SkippedTokens()

    @classmethod
    def adopt(cls, llm: AsyncLLM) -> "TokenTap":
        if not isinstance(llm.output_processor, cls):
            llm.output_processor = cls(llm.output_processor)
        return llm.output_processor

    def attach(self, hooks: "TapHooks") -> None:
        self._hooks = hooks

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> list[RunningRequest]:
        return list(self._running.values())

    async def idle(self) -> None:
        """Wait until no request runs."""
        while self._running:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def open(
        self, request_id: str, params: SamplingParams, sink: DeltaSink, is_verified: bool = False
    ) -> RunningRequest:
        """Raises InvalidRequest for an id that is already running here."""
        if request_id in self._running:
            raise InvalidRequest(f"request {request_id} is already running")
        self._running[request_id] = running = RunningRequest(request_id, params, sink, is_verified)
        return running

    def find(self, request_id: str) -> RunningRequest | None:
        return self._running.get(request_id)

    def close(self, running: RunningRequest) -> None:
        """Forget a request. What the engine still produces for it is dropped."""
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
        running = self._running.get(str(request.external_req_id))
        if running is None:
            raise InvalidRequest(f"request {request.external_req_id} was given up")
        super().add_request(request, prompt, parent_req, request_index, queue)
        running.sequence_ids.append(request.request_id)
        self._sequences[request.request_id] = _Sequence(running, request_index)

    def process_outputs(
        self,
        engine_core_outputs: list[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
        weight_version: str | None = None,
    ) -> OutputProcessorOutput:
        if iteration_stats is not None:
            self._skipped.tell(iteration_stats)
        for_vllm = []
        for output in engine_core_outputs:
            sequence = self._sequences.get(output.request_id)
            if sequence is None:
                if output.kv_transfer_params is not None and self._hooks is not None:
                    self._hooks.on_orphan(LeaseId(output.request_id))
            elif sequence.is_in_pipe:
                if not _has_news(output):
                    continue
            else:
                self._alone(sequence.running, self._take, sequence, output, engine_core_timestamp or 0.0)
            for_vllm.append(output)
        processed = super().process_outputs(for_vllm, engine_core_timestamp, iteration_stats, weight_version)
        self._end(processed.reqs_to_abort, FinishReason.STOP)
        self._say_stepped()
        return processed

    def take_piped(self, step: PipedStep) -> None:
        """Put what has come through the pipe into its sinks."""
        self._num_steps += 1
        is_observed = self._num_steps % ITL_STEPS == 0
        for output in step.outputs:
            sequence = self._sequences.get(output.request_id)
            if sequence is not None:  # otherwise it was stopped here
                self._alone(sequence.running, self._take_piped, sequence, output, step.at, is_observed)
        self._skipped.stepped()
        self._say_stepped()

    def abort_requests(self, request_ids: Any, internal: bool) -> list[str]:
        aborted = super().abort_requests(request_ids, internal)
        self._end(aborted, FinishReason.ABORT)
        return aborted

    def propagate_error(self, e: Exception) -> None:
        super().propagate_error(e)
        for running in list(self._running.values()):
            self.close(running)
            _fail(running, self._hooks.translated(e) if self._hooks else e)

    def _alone(self, running: RunningRequest, act: Callable[..., None], *arguments: Any) -> None:
        """Do something for one request. If it fails, so does this request: no other one may, nor vLLM's output loop."""
        try:
            act(*arguments)
        except Exception as error:
            logger.exception("request %s fails: its output cannot be passed on", running.request_id)
            _fail(running, error)

    def _say_stepped(self) -> None:
        try:
            if self._hooks is not None:
                self._hooks.on_step()
        except Exception:  # what it has not sent goes out with the next step
            logger.exception("the outputs of a step were not sent")

    def _take(self, sequence: _Sequence, output: EngineCoreOutput, at: float) -> None:
        """Put an output that has taken vLLM's way into its sink, and after it what came too early."""
        if output.finish_reason is not None:
            sequence.running.kv_transfer_params = output.kv_transfer_params
            sequence.running.finished_at = at
        running = sequence.running
        delta = delta_of(
            sequence.index,
            output,
            running.sink.stages,
            reports_top=running.reports_top,
            takes_handoff=running.takes_handoff,
        )
        if delta.prompt_sources is not None and self._hooks is not None:
            self._hooks.on_prompt(delta.prompt_sources)
        self._put(sequence, delta)
        if not sequence.has_begun:
            sequence.has_begun, sequence.begun_at_step = True, self._num_steps - len(sequence.early)
        early, sequence.early = sequence.early, []
        for delta in early:
            self._put(sequence, delta)

    def _take_piped(self, sequence: _Sequence, output: PipedOutput, at: float, is_observed: bool) -> None:
        state = self.request_states.get(output.request_id)
        self._skipped.count(state, output, at, is_observed=is_observed and sequence.has_begun)
        num_steps = self._num_steps - sequence.begun_at_step if sequence.has_begun else 0
        delta = piped_delta(sequence.index, output, num_steps)
        if sequence.has_begun:
            self._put(sequence, delta)
        else:
            sequence.early.append(delta)

    def _put(self, sequence: _Sequence, delta: TokenDelta) -> None:
        running = sequence.running
        if (ended := _ended_by_grammar(delta)) is not None:
            running.sink.fail(ended)  # the reader of the sink stops the request's other sequences
            return
        running.sink.put(delta)
        if delta.finish_reason is not None:
            running.num_open -= 1
            if not running.num_open:
                self.close(running)

    def _end(self, internal_ids: list[str], reason: FinishReason) -> None:
        """End sequences that the engine core has not ended."""
        for internal_id in internal_ids:
            if sequence := self._sequences.pop(internal_id, None):
                self._alone(sequence.running, self._put, sequence, TokenDelta(sequence.index, [], reason))


class TapHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What the tap calls."""

    on_prompt: Callable[[PromptTokenSources], None]
    """The engine has processed the prompt of a request that still runs."""
    on_step: Callable[[], None]
    """All outputs of a step have been put into their sinks."""
    on_orphan: Callable[[LeaseId], None]
    """A prefill has ended with a handoff after its request was closed."""
    translated: Callable[[BaseException], BaseException]
    """Translates an error of vLLM for a request that runs."""


def _fail(running: RunningRequest, error: BaseException) -> None:
    """The reader of the sink stops the request in the engine."""
    try:
        running.sink.fail(error)
    except Exception:
        logger.exception("request %s has failed, and its reader was not told", running.request_id)


def _ended_by_grammar(delta: TokenDelta) -> ServingError | None:
    """The error of a request that the engine's grammar guard has ended. None if the guard has not ended it."""
    if delta.stop_reason is None:
        return None
    if delta.stop_reason == GrammarEnd.CROWDED.value:
        return Overloaded("the schemas of other answers have left no time for this one's", CROWDED_RETRY_S)
    end = GRAMMAR_ENDS.get(delta.stop_reason)
    return None if end is None else ConstraintFailed(end)


def _has_news(output: EngineCoreOutput) -> bool:
    """Whether vLLM's part must see an output whose tokens have taken the pipe."""
    return output.finish_reason is not None or output.events is not None or output.prefill_stats is not None
