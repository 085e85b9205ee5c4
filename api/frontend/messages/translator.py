"""Requests of Anthropic's Messages API as chat completions, and the answers of chat completions as messages.

vLLM's `AnthropicServingMessages` translates, and its part that calls the engine is not used: a translated request takes
the way of every chat completion. What vLLM translates to another shape than Anthropic's is set right in api/wire/
messages/.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
from pydantic import ValidationError
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.exceptions import VLLMClientError

from api.frontend.generation import Call
from api.frontend.vllm_errors import error_in_frame, serving_error
from api.wire.limits.bounds import check_bounds
from api.wire.limits.depth import MAX_DEPTH
from api.wire.limits.structure import nesting_of
from api.wire.messages.answer import MessageEnding
from api.wire.messages.request import for_charging, read_fields
from api.wire.validation import FailFast, deepest_error, first_error, refusal
from cluster.errors import UNFORESEEN, InvalidRequest, ServingError

_MESSAGE: FailFast[AnthropicMessagesRequest] = FailFast(AnthropicMessagesRequest)
_COUNTED: FailFast[AnthropicCountTokensRequest] = FailFast(AnthropicCountTokensRequest)

_NOT_PASSED_ON = {
    "messages",  # they are taken as they were translated
    "max_tokens",  # max_completion_tokens has the same value
    "thinking_token_budget",  # the engines have no budget of their own for reasoning
}


class AskedMessage(NamedTuple):
    chat: dict[str, Any]
    """The body of the chat completion that answers the request."""
    max_tokens: int
    """Tokens that the client has allowed the message, in number. They may be more than the context window has."""


class MessageTranslator:
    def __init__(self, serving: AnthropicServingMessages, disabled_effort: str) -> None:
        """`disabled_effort`: the reasoning effort of a request that disables thinking."""
        self._serving = serving
        self._disabled_effort = disabled_effort

    @classmethod
    async def start(cls, serving: AnthropicServingMessages) -> "MessageTranslator":
        return cls(serving, await serving._get_disabled_thinking_effort())

    def asked(self, body: Any) -> AskedMessage:
        """Translate the body of a request. Raises InvalidRequest."""
        request = _validated(_MESSAGE, body)
        chat = self._chat_of(request)
        _continue_last(chat)
        chat |= for_charging(body)
        # vLLM gives an answer that is too long for the context window what is left of it, but refuses more than all
        chat["max_completion_tokens"] = min(request.max_tokens, self._serving.model_config.max_model_len)
        check_bounds(chat)
        return AskedMessage(chat, request.max_tokens)

    def counted(self, body: Any) -> dict[str, Any]:
        """The body of the chat completion that has the prompt of a request whose tokens are counted. Raises
        InvalidRequest.
        """
        chat = self._chat_of(_validated(_COUNTED, body))
        _continue_last(chat)
        check_bounds(chat)
        return chat

    def message(self, answer: dict[str, Any], call: Call, max_tokens: int) -> dict[str, Any]:
        """The message that a chat completion is the answer of."""
        (choice, *_) = answer["choices"]
        for tool_call in choice["message"].get("tool_calls") or ():
            tool_call["function"]["arguments"] = _object_in(tool_call["function"]["arguments"])
        translated = self._serving.messages_full_converter(ChatCompletionResponse.model_validate(answer))
        whole = translated.model_dump(mode="json", exclude_none=True)
        return MessageEnding(call.id, max_tokens).whole(whole, choice["finish_reason"])

    async def events(
        self, frames: AsyncGenerator[str | bytes, None], call: Call, max_tokens: int
    ) -> AsyncGenerator[bytes, None]:
        """The events of a message, from the frames of a chat completion. Raises ServingError."""
        ending = MessageEnding(call.id, max_tokens)
        chunks = _Chunks(frames, call, ending)
        async with aclosing(self._serving.message_stream_converter(chunks.texts())) as events:
            async for event in events:
                frame = ending.frame(event, call.num_prompt_tokens)
                if chunks.error is not None:
                    break
                if frame is None:
                    raise ServingError(UNFORESEEN)  # vLLM has logged the exception
                yield frame
        if chunks.error is not None:
            raise chunks.error

    def _chat_of(self, request: AnthropicMessagesRequest | AnthropicCountTokensRequest) -> dict[str, Any]:
        try:
            chat = _Translation.to_chat_completion_request(
                request,
                merge_inline_system=self._serving._merge_inline_system,
                disabled_thinking_effort=self._disabled_effort,
            )
        except ValidationError as error:
            raise refusal(first_error(error), {}) from error
        except VLLMClientError as error:
            raise serving_error(error) from error
        except (ValueError, TypeError, AttributeError) as error:  # of vLLM's translator for what it cannot translate
            raise InvalidRequest(str(error), "messages", "invalid_value") from error
        if not chat.messages:
            raise InvalidRequest("messages: at least one message with content is required", "messages", "empty_array")
        fields = chat.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=_NOT_PASSED_ON)
        body = {name: value for name, value in fields.items() if value is not None} | {"messages": chat.messages}
        if chat.stream:
            # vLLM's translator wants usage in every chunk, which a plain stream (api/frontend/plain_streams.py) has not
            body["stream_options"] = {"include_usage": True}
        return body


class _Translation(AnthropicServingMessages):
    @classmethod
    def _build_base_request(cls, anthropic_request: Any, openai_messages: list[dict[str, Any]]) -> Any:
        """With the messages as they were translated. pydantic would replace lists in them by iterators, and the request
        is validated when it is answered.
        """
        request: ChatCompletionRequest = super()._build_base_request(anthropic_request, [])
        request.messages = openai_messages
        return request


class _Chunks:
    """The chunks of a chat completion on their way to vLLM's translator, without the error that ends them."""

    def __init__(self, frames: AsyncGenerator[str | bytes, None], call: Call, ending: MessageEnding) -> None:
        self._frames = frames
        self._call = call
        self._ending = ending
        self.error: ServingError | None = None
        """What has ended the chunks early. The translator would show the text of an exception to the client."""

    async def texts(self) -> AsyncGenerator[str, None]:
        try:
            async with aclosing(self._frames) as frames:
                async for frame in frames:
                    text = frame if isinstance(frame, str) else frame.decode()
                    self.error = error_in_frame(text, self._call.error)
                    if self.error is not None:
                        return
                    if '"finish_reason":"' in text:  # not within a string of JSON, whose quotes are escaped
                        self._ending.finish_reason = _finish_reason_in(text)
                    yield text
        except ServingError as error:
            self.error = error


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


def _finish_reason_in(frame: str) -> str | None:
    chunk = msgspec.json.decode(frame.removeprefix("data: "), type=_Chunk)
    return chunk.choices[0].finish_reason if chunk.choices else None


def _validated(model: FailFast[Any], body: Any) -> Any:
    read = read_fields(body)
    try:
        return model.validate(read)
    except ValidationError as error:
        raise refusal(deepest_error(error), read) from error
    except (ValueError, TypeError, AttributeError) as error:  # raised by vLLM's validators for a value of a wrong type
        raise InvalidRequest(f"a field of the request has a wrong type ({error})", None, "invalid_type") from error


def _continue_last(chat: dict[str, Any]) -> None:
    """Let the model go on with the last message if that is the beginning of its answer."""
    last = chat["messages"][-1]
    if last["role"] == "assistant" and isinstance(last.get("content"), str) and "tool_calls" not in last:
        chat |= {"continue_final_message": True, "add_generation_prompt": False}


def _object_in(arguments: str) -> str:
    """The arguments of a tool call if they are a JSON object that an answer can hold, and otherwise an empty one: the
    answer has ended within them, or the model has written lone surrogates, or lists in lists without end.
    """
    try:
        text = arguments.encode()
        is_told = isinstance(msgspec.json.decode(text), dict) and nesting_of(text) <= MAX_DEPTH
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        is_told = False
    return arguments if is_told else "{}"
