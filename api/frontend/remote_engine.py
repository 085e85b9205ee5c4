"""The engine that vLLM's serving code calls in the ingress. It runs each prompt as a session over the workers."""

import argparse
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from copy import copy
from functools import partial
from typing import Any, cast

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.outputs import RequestOutput
from vllm.renderers import renderer_from_config
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine import FinishReason as EngineFinishReason
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.serial_utils import MsgpackDecoder

from api.frontend.fast_tokenizer import tokenize_faster
from api.frontend.generation import CALL, Generation, SessionFactory, request_of
from api.frontend.public_prefixes import PublicPrefixes
from api.frontend.release import Release
from api.frontend.screened_outputs import OutputOf, screened
from api.safety.answer_screen import CONTEXT_LENGTH
from api.structured.beside_tools import judge_by_keywords
from api.structured.compilers import Compilers
from api.structured.tokens import tokens_of
from cluster.config.structured_output import StructuredOutputConfig
from cluster.engine.block_hashes import BlockHasher
from cluster.messages.generation import TokenDelta
from router.session.session import Session

DETOKENIZER_CONTEXT = 32
"""Prompt tokens that the detokenizer of an answer starts from, in number. The text of the first output tokens depends
on the prompt tokens before them. With a higher value, the first token costs more time. With fewer than 7, which vLLM's
`SlowIncrementalDetokenizer` reads, the first text can be wrong.
"""

CONTINUED_TOKENS = 512
"""Last tokens of a prompt that the text is taken of which the screening reads with an answer that continues it, in
number. More finds a phrase behind more blanks and special tokens; fewer decodes fewer tokens.
"""
_BLANKS = re.compile(r"\s+")
TOKENS_ALONE = 512
"""The divisor of the delivery interval of an answer that may call tools, in tokens: an answer of n tokens leaves
n // 512 tokens at a time (at least one). A lower value delivers long tool arguments in larger pieces. A higher value
costs more time of the event loop per token, because vLLM's tool parsers read the whole text at each delivery.
"""


class RemoteEngine:
    """The part of vLLM's `EngineClient` that vLLM's serving code uses."""

    errored = False

    def __init__(
        self,
        arguments: argparse.Namespace,
        hasher: BlockHasher,
        start_session: SessionFactory,
        constraints: StructuredOutputConfig,
    ) -> None:
        self.vllm_config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
        self.model_config = self.vllm_config.model_config
        self.renderer = renderer_from_config(self.vllm_config)
        tokenize_faster(self.renderer)
        self.input_processor = InputProcessor(self.vllm_config, self.renderer)
        # With a config, vLLM's `SamplingParams.verify` would compile constraints on the event loop. `Compilers` does it
        # in processes of their own.
        self.input_processor.structured_outputs_config = None
        judge_by_keywords()
        self.compilers = Compilers(constraints, self._tokens)
        self._has_tags = constraints.allow_grammars or arguments.tool_call_parser is not None
        self._outputs = OutputProcessor(self.renderer.tokenizer, log_stats=False)
        self._hasher = hasher
        self.public_prefixes = PublicPrefixes([], hasher.block_size)
        """Set once more before the first request: the prefixes of the config are rendered with this engine."""
        self._start_session = start_session
        self._decoder = MsgpackDecoder(EngineCoreOutput)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Admit every request: the Scheduler decides on admission."""

    async def is_tracing_enabled(self) -> bool:
        return False

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        **ignored: object,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run one prompt. `ignored` are arguments for an engine alone: priority, data-parallel rank, trace headers.

        The prompt is checked here, so that all prompts of a request are before one of them is charged or computed. The
        generation is also added to the call. Plain text streams (api/frontend/plain_streams.py) take it from there
        and do not iterate the outputs. The generation starts with the first iteration of either, and needs no closing
        before.

        Raises GenerationError, with the reason in the call.
        """
        call = CALL.get()
        request = request_of(call, self.input_processor, prompt, sampling_params, request_id)
        if call.charge is not None:
            num_sequences = sampling_params.n
            call.charge.expect(
                len(request.prompt_token_ids or ()), num_sequences * (sampling_params.max_tokens or 0), num_sequences
            )
        generation = Generation(call, sampling_params, request, reasoning_ended, reasoning_parser_kwargs)
        call.generations.append(generation)
        return self._outputs_of(generation)

    async def start(self, generation: Generation) -> Session:
        """Start the session of a generation, which must be run. Raises ServingError."""
        return await generation.start(self._hasher, self.public_prefixes, self.compilers, self._start_session)

    def _tokens(self) -> dict[str, Any]:
        vocab_size = int(self.model_config.get_vocab_size())
        return tokens_of(self.renderer.get_tokenizer(), vocab_size, self._has_tags)

    def detokenizer(self, request: EngineCoreRequest) -> IncrementalDetokenizer:
        """A detokenizer that starts from the last DETOKENIZER_CONTEXT tokens of the prompt. With the whole prompt,
        vLLM's `FastIncrementalDetokenizer` would decode the whole prompt at the first token.
        """
        tail = copy(request)
        tail.prompt_token_ids = (request.prompt_token_ids or [])[-DETOKENIZER_CONTEXT:]
        return IncrementalDetokenizer.from_new_request(self.renderer.tokenizer, tail)

    def release(self, generation: Generation) -> Release:
        """What lets the generation leave."""
        return Release(generation.screening, generation.request.params.n, self._continued(generation))

    def _continued(self, generation: Generation) -> str:
        """The end of the prompt, if the answer continues its text and is screened; empty if not."""
        if generation.screening is None or not generation.screening.continues_prompt:
            return ""
        tokens = (generation.request.prompt_token_ids or [])[-CONTINUED_TOKENS:]
        text = self.renderer.get_tokenizer().decode(tokens, skip_special_tokens=True)
        return _BLANKS.sub(" ", text)[-CONTEXT_LENGTH:]

    async def _outputs_of(self, generation: Generation) -> AsyncGenerator[RequestOutput, None]:
        """The generation as the request outputs that vLLM's serving code reads."""
        request = generation.request
        wants_whole = request.params.output_kind is RequestOutputKind.FINAL_ONLY
        if generation.screening is not None:
            request.params.output_kind = RequestOutputKind.DELTA
        collector = RequestOutputCollector(request.params.output_kind, request.request_id)
        sequence_ids: list[str] = []
        try:
            with generation.failures():
                self._expect(request, collector, sequence_ids)
                states = self._outputs.request_states
                generation.detokenizers = [states[sequence].detokenizer for sequence in sequence_ids]
                release = self.release(generation)
                session = await self.start(generation)
                take = partial(self._take, generation, session, sequence_ids, collector)
                outputs = (
                    self._unscreened(session, release, take)
                    if generation.screening is None
                    else screened(session, release, take, self.renderer.get_tokenizer())
                )
                whole: RequestOutput | None = None
                async with aclosing(outputs):
                    async for output in outputs:
                        if not wants_whole or generation.screening is None:
                            yield output
                        elif whole is None:
                            whole = output
                        else:
                            whole.add(output, aggregate=True)
                if whole is not None:
                    whole.outputs.sort(key=lambda completion: completion.index)
                    yield whole
        finally:
            self._outputs.abort_requests(sequence_ids, internal=True)

    async def _unscreened(
        self, session: Session, release: Release, take: OutputOf
    ) -> AsyncGenerator[RequestOutput, None]:
        async with aclosing(release.deltas(session)) as deltas:
            async for delta in deltas:
                if (output := take(delta)) is not None:
                    yield output

    def _take(
        self,
        generation: Generation,
        session: Session,
        sequence_ids: list[str],
        collector: RequestOutputCollector,
        delta: TokenDelta,
    ) -> RequestOutput | None:
        """The request output of a delta; None if there is none yet."""
        generation.note(session, delta)
        self._outputs.process_outputs([self._to_engine_output(sequence_ids[delta.sequence], delta)])
        output = collector.get_nowait()
        if generation.has_tools:
            self._lengthen_interval(sequence_ids[delta.sequence])
        return cast(RequestOutput | None, output)

    def _lengthen_interval(self, sequence_id: str) -> None:
        """Raise the number of tokens that leave at a time (vLLM's `RequestState.stream_interval`) with the length of
        the sequence.
        """
        state = self._outputs.request_states.get(sequence_id)
        if state is None or state.detokenizer is None:
            return
        num_tokens = state.detokenizer.num_output_tokens()
        interval = num_tokens // TOKENS_ALONE
        if interval > state.stream_interval:
            if state.stream_interval == 1:
                state.sent_tokens_offset = num_tokens  # vLLM updates the offset only if the interval is longer than 1
            state.stream_interval = interval

    def _expect(self, request: EngineCoreRequest, collector: RequestOutputCollector, ids: list[str]) -> None:
        """Prepare the detokenization of the request's sequences. `ids` gets the id of each sequence, by its index."""
        if request.params.n == 1:
            self._outputs.add_request(request, None, None, 0, collector)
            ids.append(request.request_id)
            return
        parent = ParentRequest(request)
        for index in range(request.params.n):
            child = copy(request)
            child.request_id, child.sampling_params = parent.get_child_info(index)
            self._outputs.add_request(child, None, parent, index, collector)
            ids.append(child.request_id)

    def _to_engine_output(self, sequence_id: str, delta: TokenDelta) -> EngineCoreOutput:
        output = self._decoder.decode(delta.logprobs) if delta.logprobs else EngineCoreOutput("", [])
        output.request_id = sequence_id
        output.new_token_ids = list(delta.token_ids)
        output.finish_reason = delta.finish_reason and EngineFinishReason[delta.finish_reason.name]
        output.stop_reason = delta.stop_reason
        if (sources := delta.prompt_sources) is not None:
            output.prefill_stats = PrefillStats(num_cached_tokens=sources.cached)
        return cast(EngineCoreOutput, output)
