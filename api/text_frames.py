"""The SSE frames of one plain text stream. Built once per stream by vLLM's own response models, so that they follow
vLLM's field order and its idea of what is absent; a token's frame is then its JSON string between two constant halves.
"""

import time
from typing import Any, Protocol

import msgspec
from pydantic import BaseModel
from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.entrypoints.generate.base.serving import GenerateBaseServing
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
)
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import (
    CompletionRequest,
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
)
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.serve.engine.protocol import PromptTokenUsageInfo, UsageInfo

_MARK = "3f9a5d1c7be84620a1d0c2f47e9b6a58"
"""Stands for the text while a frame is cut in halves."""

_json_string = msgspec.json.Encoder().encode
"""Escapes exactly what pydantic's serializer does (tests/component/test_text_frames.py)."""


class TextFrames(Protocol):
    opening: bytes
    """Sent before the first text."""

    def text(self, text: str) -> bytes:
        """The frame of a delta that ends nothing; empty where vLLM sends none."""
        ...

    def finish(self, text: str, finish_reason: str, stop_reason: int | str | None) -> bytes: ...

    def usage(self, num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int | None) -> bytes: ...


class ChatFrames:
    def __init__(
        self,
        serving: OpenAIServingChat,
        request: ChatCompletionRequest,
        request_id: str,
        model_name: str,
    ) -> None:
        self._serving = serving
        self._chunk: dict[str, Any] = {
            "id": request_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model_name,
        }
        self._fingerprint = _fingerprint_of_the_finish(serving, request)
        self._has_parser = serving.parser_cls is not None
        role = DeltaMessage(role=serving.get_chat_request_role(request), content="")
        self.opening = _frame(self._with(role, finish_reason=None))
        self._before, self._after = _halves(self._with(DeltaMessage(content=_MARK), finish_reason=None))

    def text(self, text: str) -> bytes:
        if not text and self._has_parser:
            return b""
        return self._before + _json_string(text) + self._after

    def finish(self, text: str, finish_reason: str, stop_reason: int | str | None) -> bytes:
        delta = DeltaMessage(content=text) if text or not self._has_parser else DeltaMessage()
        chunk = self._with(delta, finish_reason=finish_reason, **_if_known(stop_reason))
        return _frame(chunk.model_copy(update=self._fingerprint))

    def usage(self, num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int | None) -> bytes:
        usage = _usage(num_prompt_tokens, num_output_tokens)
        if self._serving.enable_prompt_tokens_details and num_cached_tokens is not None:
            usage.prompt_tokens_details = PromptTokenUsageInfo(cached_tokens=num_cached_tokens, created_cache_tokens=0)
        fingerprint = self._serving.system_fingerprint
        chunk = ChatCompletionStreamResponse(**self._chunk, choices=[], usage=usage, system_fingerprint=fingerprint)
        return _frame(chunk, exclude_none=True)

    def _with(self, delta: DeltaMessage, **fields: Any) -> ChatCompletionStreamResponse:
        choice = ChatCompletionResponseStreamChoice(index=0, delta=delta, logprobs=None, **fields)
        return ChatCompletionStreamResponse(**self._chunk, choices=[choice])


class CompletionFrames:
    opening = b""

    def __init__(
        self,
        serving: OpenAIServingCompletion,
        request: CompletionRequest,
        request_id: str,
        created_time: int,
        model_name: str,
    ) -> None:
        self._serving = serving
        self._chunk: dict[str, Any] = {
            "id": request_id,
            "object": "text_completion",
            "created": created_time,
            "model": model_name,
        }
        self._fingerprint = _fingerprint_of_the_finish(serving, request)
        self._before, self._after = _halves(self._with(_MARK, finish_reason=None))

    def text(self, text: str) -> bytes:
        return self._before + _json_string(text) + self._after

    def finish(self, text: str, finish_reason: str, stop_reason: int | str | None) -> bytes:
        chunk = self._with(text, finish_reason=finish_reason, **_if_known(stop_reason))
        return _frame(chunk.model_copy(update=self._fingerprint))

    def usage(self, num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int | None) -> bytes:
        usage = _usage(num_prompt_tokens, num_output_tokens)
        if self._serving.enable_prompt_tokens_details and num_cached_tokens is not None:
            usage.prompt_tokens_details = PromptTokenUsageInfo(cached_tokens=num_cached_tokens)
        fingerprint = self._serving.system_fingerprint
        chunk = CompletionStreamResponse(**self._chunk, choices=[], usage=usage, system_fingerprint=fingerprint)
        return _frame(chunk, exclude_none=True)

    def _with(self, text: str, **fields: Any) -> CompletionStreamResponse:
        choice = CompletionResponseStreamChoice(index=0, text=text, logprobs=None, **fields)
        return CompletionStreamResponse(**self._chunk, choices=[choice])


def _fingerprint_of_the_finish(serving: GenerateBaseServing, request: Any) -> dict[str, str]:
    """vLLM stamps the last chunk, which is the usage where that was asked for."""
    if serving.system_fingerprint is None or wants_usage(request):
        return {}
    return {"system_fingerprint": serving.system_fingerprint}


def _if_known(stop_reason: int | str | None) -> dict[str, int | str]:
    return {} if stop_reason is None else {"stop_reason": stop_reason}


def wants_usage(request: ChatCompletionRequest | CompletionRequest) -> bool:
    return bool(request.stream_options and request.stream_options.include_usage)


def _usage(num_prompt_tokens: int, num_output_tokens: int) -> UsageInfo:
    return UsageInfo(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=num_prompt_tokens + num_output_tokens,
    )


def _halves(chunk: BaseModel) -> tuple[bytes, bytes]:
    before, _, after = _frame(chunk).partition(f'"{_MARK}"'.encode())
    return before, after


def _frame(chunk: BaseModel, *, exclude_none: bool = False) -> bytes:
    """What vLLM leaves null unless asked for is left unset here, which is what `public_frame` makes of it there."""
    return f"data: {chunk.model_dump_json(exclude_unset=True, exclude_none=exclude_none)}\n\n".encode()
