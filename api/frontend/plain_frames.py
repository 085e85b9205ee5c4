"""The SSE frames of one plain text stream: constant parts around the JSON string of a delta.

vLLM's response models build the parts, once per process and kind of frame. The parts therefore have vLLM's field order
and vLLM's choice of absent fields. A stream puts its id and its time into the parts.
"""

import secrets
import time
from functools import lru_cache
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

_TEXT, _ID, _STOP = (secrets.token_hex(16) for _ in range(3))
_CREATED = secrets.randbits(52) | 1 << 52
"""Placeholders in a part for what differs between streams: text, id, stop string, time. The placeholders are random, so
that no text of a client contains them.
"""

_json_string = msgspec.json.Encoder().encode
"""A text as JSON. The encoder escapes the same characters as pydantic's serializer
(tests/component/api/frontend/test_plain_frames.py).
"""


class TextFrames(Protocol):
    opening: bytes
    """The frame before the first text; empty if the stream has none."""

    def text(self, text: str) -> bytes:
        """The frame of a delta that does not end the sequence; empty if vLLM sends no frame for it."""
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
        self._model_name = model_name
        self._stamp = _Stamp(request_id, int(time.time()))
        self._fingerprint = _fingerprint_of_the_finish(serving, request)
        self._has_parser = serving.parser_cls is not None
        (self.opening,) = self._stamp.on(_chat_parts(model_name, role=serving.get_chat_request_role(request), text=""))
        self._before, self._after = self._stamp.on(_chat_parts(model_name, text=_TEXT))

    def text(self, text: str) -> bytes:
        if not text and self._has_parser:
            return b""
        return self._before + _json_string(text) + self._after

    def finish(self, text: str, finish_reason: str, stop_reason: int | str | None) -> bytes:
        parts = _chat_parts(
            self._model_name,
            text=_TEXT if text or not self._has_parser else None,
            finish_reason=finish_reason,
            stop_reason=_STOP if isinstance(stop_reason, str) else stop_reason,
            fingerprint=self._fingerprint,
        )
        return self._stamp.joined(parts, text, stop_reason)

    def usage(self, num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int | None) -> bytes:
        usage = _usage(num_prompt_tokens, num_output_tokens)
        if self._serving.enable_prompt_tokens_details and num_cached_tokens is not None:
            usage.prompt_tokens_details = PromptTokenUsageInfo(cached_tokens=num_cached_tokens, created_cache_tokens=0)
        fingerprint = self._serving.system_fingerprint
        chunk = _chat_chunk(self._model_name, choices=[], usage=usage, system_fingerprint=fingerprint)
        (frame,) = self._stamp.on((_frame(chunk, exclude_none=True),))
        return frame


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
        self._model_name = model_name
        self._stamp = _Stamp(request_id, created_time)
        self._fingerprint = _fingerprint_of_the_finish(serving, request)
        self._before, self._after = self._stamp.on(_completion_parts(model_name))

    def text(self, text: str) -> bytes:
        return self._before + _json_string(text) + self._after

    def finish(self, text: str, finish_reason: str, stop_reason: int | str | None) -> bytes:
        parts = _completion_parts(
            self._model_name,
            finish_reason=finish_reason,
            stop_reason=_STOP if isinstance(stop_reason, str) else stop_reason,
            fingerprint=self._fingerprint,
        )
        return self._stamp.joined(parts, text, stop_reason)

    def usage(self, num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int | None) -> bytes:
        usage = _usage(num_prompt_tokens, num_output_tokens)
        if self._serving.enable_prompt_tokens_details and num_cached_tokens is not None:
            usage.prompt_tokens_details = PromptTokenUsageInfo(cached_tokens=num_cached_tokens)
        fingerprint = self._serving.system_fingerprint
        chunk = _completion_chunk(self._model_name, choices=[], usage=usage, system_fingerprint=fingerprint)
        (frame,) = self._stamp.on((_frame(chunk, exclude_none=True),))
        return frame


class _Stamp:
    """The id and the time that all frames of one stream have."""

    def __init__(self, request_id: str, created: int) -> None:
        self._id = _json_string(request_id)
        self._created = str(created).encode()

    def on(self, parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return tuple(part.replace(_ID_JSON, self._id).replace(_CREATED_JSON, self._created) for part in parts)

    def joined(self, parts: tuple[bytes, ...], text: str, stop_reason: int | str | None) -> bytes:
        """The frame of a text between the parts. `stop_reason` is the stop string if one ended the sequence."""
        stamped = self.on(parts)
        if isinstance(stop_reason, str):
            stop = _json_string(stop_reason)
            stamped = tuple(part.replace(_STOP_JSON, stop) for part in stamped)
        return _json_string(text).join(stamped)


_STOP_JSON = _json_string(_STOP)
_ID_JSON = _json_string(_ID)
_CREATED_JSON = str(_CREATED).encode()
_PARTS_KEPT = 256
"""Kinds of frame whose parts are cached, in number, for chats and for completions each. Kinds differ in model name,
finish reason or stop token. A higher value takes more memory; a lower value builds parts again more often.
"""


@lru_cache(_PARTS_KEPT)
def _chat_parts(
    model_name: str,
    *,
    text: str | None,
    role: str | None = None,
    finish_reason: str | None = None,
    stop_reason: int | str | None = None,
    fingerprint: str | None = None,
) -> tuple[bytes, ...]:
    """A frame, cut at its text if the text is `_TEXT`. A field that is None is unset in the frame."""
    delta = DeltaMessage(**_known(role=role, content=text))
    choice = ChatCompletionResponseStreamChoice(
        index=0, delta=delta, logprobs=None, finish_reason=finish_reason, **_known(stop_reason=stop_reason)
    )
    return _cut(_chat_chunk(model_name, choices=[choice], **_known(system_fingerprint=fingerprint)))


@lru_cache(_PARTS_KEPT)
def _completion_parts(
    model_name: str,
    *,
    finish_reason: str | None = None,
    stop_reason: int | str | None = None,
    fingerprint: str | None = None,
) -> tuple[bytes, ...]:
    choice = CompletionResponseStreamChoice(
        index=0, text=_TEXT, logprobs=None, finish_reason=finish_reason, **_known(stop_reason=stop_reason)
    )
    return _cut(_completion_chunk(model_name, choices=[choice], **_known(system_fingerprint=fingerprint)))


def _chat_chunk(model_name: str, **fields: Any) -> ChatCompletionStreamResponse:
    return ChatCompletionStreamResponse(
        id=_ID, object="chat.completion.chunk", created=_CREATED, model=model_name, **fields
    )


def _completion_chunk(model_name: str, **fields: Any) -> CompletionStreamResponse:
    return CompletionStreamResponse(id=_ID, object="text_completion", created=_CREATED, model=model_name, **fields)


def _fingerprint_of_the_finish(serving: GenerateBaseServing, request: Any) -> str | None:
    """The fingerprint of a finish frame; None if a usage frame follows, because vLLM stamps the last chunk alone."""
    return None if wants_usage(request) else serving.system_fingerprint


def _known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def wants_usage(request: ChatCompletionRequest | CompletionRequest) -> bool:
    return bool(request.stream_options and request.stream_options.include_usage)


def _usage(num_prompt_tokens: int, num_output_tokens: int) -> UsageInfo:
    return UsageInfo(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=num_prompt_tokens + num_output_tokens,
    )


def _cut(chunk: BaseModel) -> tuple[bytes, ...]:
    return tuple(_frame(chunk).split(_json_string(_TEXT)))


def _frame(chunk: BaseModel, *, exclude_none: bool = False) -> bytes:
    """The frame of a chunk, without its unset fields. In vLLM's own frames those fields are null, and `public_frame`
    (api/wire/public_bodies.py) removes them.
    """
    return f"data: {chunk.model_dump_json(exclude_unset=True, exclude_none=exclude_none)}\n\n".encode()
