"""Streams of plain text without vLLM's objects per token.

vLLM's serving code builds a request output, a pydantic chunk and its JSON for each token. `TextChat` and
`TextCompletion` are vLLM's `OpenAIServingChat` and `OpenAIServingCompletion` with one method replaced. If a request
asks only for text, its stream is written from frames that are prepared once per request (api/frontend/plain_frames.py).
A request that asks for more gets vLLM's own stream, and so does one with a field that is not known to be plain:
PLAIN_REQUEST_FIELDS lists those of the HTTP body, and FACTS (cluster/engine/sampling_params.py) decides about the
sampling parameters. Both streams have the same bytes (tests/component/api/frontend/test_plain_streams.py).
"""

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.exceptions import GenerationError
from vllm.parser.abstract_parser import DelegatingParser, Parser
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from api.frontend.generation import CALL, Generation
from api.frontend.plain_frames import ChatFrames, CompletionFrames, TextFrames, wants_usage
from api.frontend.release import SequencePiece
from api.safety.pieces import CUT, Piece
from api.wire.sse import DONE
from cluster.engine.sampling_params import PLAIN_FIELDS, is_plain
from cluster.messages.generation import FinishReason, TokenDelta
from router.session.session import Session

logger = logging.getLogger("baton.ingress")

PLAIN_REQUEST_FIELDS = PLAIN_FIELDS | {
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template_kwargs",
    "continue_final_message",
    "max_completion_tokens",
    "messages",
    "model",
    "prompt",
    "reasoning_effort",
    "request_id",
    "response_format",
    "stream",
    "stream_options",
    "truncate_prompt_tokens",
}
"""Fields of a body that a plain stream supports with any value: the sampling parameters that FACTS opens, and fields
that change the prompt but not the form of a frame (`stream_options` can change it and is checked). If a body sets any
further field to a value that is not its default, vLLM writes the stream.
"""


class TextChat(OpenAIServingChat):
    @classmethod
    def adopt(cls, serving: OpenAIServingChat) -> "TextChat":
        """A TextChat with the attributes of a serving object that vLLM has set up."""
        adopted: TextChat = cls.__new__(cls)
        adopted.__dict__.update(serving.__dict__)
        return adopted

    def chat_completion_stream_generator(
        self, request: ChatCompletionRequest, outputs: Any, request_id: str, model_name: str, *rest: Any, **options: Any
    ) -> AsyncGenerator[str | bytes, None]:
        generation = plain_generation(self, request)
        if generation is None or self.enable_log_outputs or not passes_text_on(self.parser_cls):
            return super().chat_completion_stream_generator(request, outputs, request_id, model_name, *rest, **options)
        frames = ChatFrames(self, request, request_id, model_name)
        return _TextStream(self, generation, frames, wants_usage(request)).frames()


class TextCompletion(OpenAIServingCompletion):
    @classmethod
    def adopt(cls, serving: OpenAIServingCompletion) -> "TextCompletion":
        """A TextCompletion with the attributes of a serving object that vLLM has set up."""
        adopted: TextCompletion = cls.__new__(cls)
        adopted.__dict__.update(serving.__dict__)
        return adopted

    def completion_stream_generator(
        self,
        request: CompletionRequest,
        prompts: Any,
        outputs: Any,
        request_id: str,
        created_time: int,
        model_name: str,
        **options: Any,
    ) -> AsyncGenerator[str | bytes, None]:
        generation = plain_generation(self, request)
        if generation is None:
            return super().completion_stream_generator(
                request, prompts, outputs, request_id, created_time, model_name, **options
            )
        frames = CompletionFrames(self, request, request_id, created_time, model_name)
        return _TextStream(self, generation, frames, wants_usage(request)).frames()


Serving = TextChat | TextCompletion


def plain_generation(serving: Serving, request: ChatCompletionRequest | CompletionRequest) -> Generation | None:
    """The generation of a request that asks for plain text; None if vLLM must write the stream."""
    generations = CALL.get().generations
    if len(generations) != 1 or serving.enable_force_include_usage or serving.enable_per_request_metrics:
        return None
    if not asks_for_text_alone(request):
        return None
    return generations[0] if is_plain(generations[0].params) else None


def asks_for_text_alone(request: ChatCompletionRequest | CompletionRequest) -> bool:
    """Whether a plain stream supports all fields of the body. It supports no field that vLLM does not know."""
    usage = request.stream_options
    if usage is not None and usage.include_usage and usage.continuous_usage_stats:
        return False
    fields = type(request).model_fields
    return all(
        name in fields
        and (
            name in PLAIN_REQUEST_FIELDS
            or getattr(request, name) == fields[name].get_default(call_default_factory=True)
        )
        for name in request.model_fields_set
    )


def passes_text_on(parser: type[Parser] | None) -> bool:
    """Whether the text of a request without tools reaches the client unchanged. It does without a parser, and with a
    parser for tools alone that leaves the text to vLLM's `DelegatingParser`.
    """
    if parser is None:
        return True
    return (
        DelegatingParser in parser.__bases__
        and parser.reasoning_parser_cls is None
        and not parser.tool_parser_cls.engine_based_streaming
    )


class _TextStream:
    """One stream: it turns the token deltas of its sequence into frames."""

    def __init__(self, serving: Serving, generation: Generation, frames: TextFrames, with_usage: bool) -> None:
        self._serving = serving
        self._generation = generation
        self._frames = frames
        self._with_usage = with_usage
        self._detokenizer: IncrementalDetokenizer
        self._num_prompt_tokens = 0
        self._num_cached_tokens: int | None = None
        """Tokens of the prompt whose KV blocks were cached, in number; None before the first delta."""
        self._num_output_tokens = 0
        """Tokens that have left, in number."""
        self._is_finished = False

    async def frames(self) -> AsyncGenerator[str | bytes, None]:
        """The frames of the stream. An error is a frame, as in vLLM's stream generators. Frames of errors and the
        terminal frame are vLLM's own text (str), which EventStream (api/server/event_stream.py) recognizes.
        """
        serving = self._serving
        try:
            engine = serving.engine_client
            request = self._generation.request
            with self._generation.failures():
                self._detokenizer = engine.detokenizer(request)
                release = engine.release(self._generation)
                session = await engine.start(self._generation)
                opening = self._frames.opening
                async with aclosing(release.pieces(session, partial(self._pieces, session, request))) as pieces:
                    async for _, piece in pieces:
                        if opening:
                            yield opening
                            opening = b""
                        if frame := self._frame(piece):
                            yield frame
            if self._with_usage:
                yield self._frames.usage(self._num_prompt_tokens, self._num_output_tokens, self._num_cached_tokens)
        except GenerationError as error:
            yield f"data: {serving._convert_generation_error_to_streaming_response(error)}\n\n"
        except Exception as error:
            logger.exception("a text stream failed")
            yield f"data: {serving.create_streaming_error_response(error)}\n\n"
        yield DONE

    def _pieces(self, session: Session, request: EngineCoreRequest, delta: TokenDelta) -> Iterator[SequencePiece]:
        """The text of a delta; none after the end. Tokens are counted and the sequence ends as in vLLM's
        `OutputProcessor`.
        """
        self._generation.note(session, delta)
        if self._num_cached_tokens is None:
            self._note_prompt(request, delta)
        if self._is_finished:  # a stop string ended the sequence here; the worker still sends a few deltas
            return
        detokenizer, num_new, finish = self._detokenizer, len(delta.token_ids), delta.finish_reason
        num_before = detokenizer.num_output_tokens()
        stop = detokenizer.update(delta.token_ids, finish is FinishReason.STOP)
        stop_reason: int | str | None = delta.stop_reason
        if stop:
            num_new = min(num_new, detokenizer.num_output_tokens() - num_before)
            finish, stop_reason = FinishReason.STOP, stop
        self._is_finished = finish is not None
        text = detokenizer.get_next_output_text(self._is_finished, True)
        yield SequencePiece(0, Piece(text, delta.token_ids[:num_new], None, finish, stop_reason))

    def _note_prompt(self, request: EngineCoreRequest, first: TokenDelta) -> None:
        sources = first.prompt_sources
        self._num_prompt_tokens = len(request.prompt_token_ids or ())
        self._num_cached_tokens = sources.cached if sources else 0

    def _frame(self, piece: Piece) -> bytes:
        """The frame of a piece; empty if vLLM sends no frame for it."""
        if not (piece.text or piece.token_ids or self._num_output_tokens or piece.finish_reason == CUT):
            return b""
        self._num_output_tokens += len(piece.token_ids)
        if piece.finish_reason is None:
            return self._frames.text(piece.text)
        return self._frames.finish(piece.text, piece.finish_reason, piece.stop_reason)
