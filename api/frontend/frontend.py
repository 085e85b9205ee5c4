"""vLLM's OpenAI front half, without its engine: request models, chat templates, tokenizer, tool and reasoning parsers.

`Frontend` owns vLLM's serving objects (`OpenAIServingChat`, `OpenAIServingCompletion`, `OpenAIServingModels`). In place
of vLLM's engine they call `RemoteEngine` (api/frontend/remote_engine.py).
"""

import argparse
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from starlette.datastructures import State
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
from vllm.exceptions import GenerationError, VLLMClientError
from vllm.renderers.chat_utils import has_non_text_content
from vllm.utils.argparse_utils import FlexibleArgumentParser

from api.frontend.checking_thread import in_checking_thread
from api.frontend.generation import CALL, Call, SessionFactory
from api.frontend.messages.translator import MessageTranslator
from api.frontend.plain_streams import TextChat, TextCompletion
from api.frontend.public_prefixes import PublicPrefixes
from api.frontend.reasoning_counter import ReasoningCounter
from api.frontend.remote_engine import RemoteEngine
from api.frontend.screened_requests import ScreenedRequests
from api.frontend.tokens.token_counting import TextCounter
from api.frontend.tokens.tokenization import Tokenization
from api.frontend.tokens.windows import counted_params, uncounted
from api.frontend.tool_waits import told
from api.frontend.vllm_errors import RENDERING_FAILED, error_of_response, quiet_parsers, quiet_refusals, serving_error
from api.safety.audit.decision_record import AuditPort
from api.safety.review import Appealed, Review
from api.safety.scored_text import Scored
from api.safety.screener import Screener
from api.safety.stages import Tokens
from api.wire.fields import check_fields
from api.wire.validation import FailFast, first_error, refusal
from cluster.config.application import AppConfig
from cluster.engine.block_hashes import BlockHasher
from cluster.errors import InvalidRequest, ServingError
from cluster.repository import resolve_model

Frames = AsyncGenerator[str | bytes, None]
"""SSE frames of one stream. A str is as vLLM writes it; bytes are ready for the wire."""


class _Counted(ChatCompletionRequest):
    """A request whose tokens are counted. Its prompt may be longer than the model can read: `build_tok_params` replaces
    the limit that vLLM's renderer enforces.
    """

    def build_tok_params(self, model_config: Any) -> Any:
        return counted_params(super().build_tok_params(model_config), model_config)


CHARACTERS_OF_TOKEN = 64
"""Characters that a token of a prompt has at most, on average. A higher value screens longer requests that the model
cannot read; a lower value refuses long runs of blanks that it could.
"""

_CHAT: FailFast[ChatCompletionRequest] = FailFast(ChatCompletionRequest)
_COUNTED: FailFast[_Counted] = FailFast(_Counted)
_TEXT: FailFast[CompletionRequest] = FailFast(CompletionRequest)

MANY_MESSAGES = 200
"""Most messages of a chat that are validated on the event loop, in number. The validation of 200 takes up to 3 ms. A
higher value blocks the event loop for longer; a lower value sends more requests through the checking thread.
"""
MESSAGES_AT_A_TIME = 1024
"""Most messages that the checking thread validates in one call of pydantic, in number. The validation of 1024 takes up
to 12 ms, and the call holds the interpreter. A higher value blocks the event loop for longer; a lower value makes more
calls for one chat.
"""
MANY_TOKENS = 20_000
"""Most token ids of a text completion's prompt that are validated on the event loop, in number. The validation of
20,000 takes up to 2 ms. A higher value blocks the event loop for longer; a lower value sends more requests through the
checking thread.
"""


class Frontend:
    """Answers chat and text completions. A request is a dictionary; an answer is a dictionary or a stream of frames."""

    def __init__(
        self,
        chat: OpenAIServingChat,
        completion: OpenAIServingCompletion,
        models: OpenAIServingModels,
        messages: MessageTranslator,
        tokenization: ServingTokenization,
        screener: Screener | None = None,
    ) -> None:
        """`screener`: screens all requests and answers."""
        self.messages = messages
        """Translates messages of Anthropic's API into chat completions, and their answers back."""
        self._chat = chat
        self._completion = completion
        self._models = models
        self._texts = TextCounter(self._count)
        self.tokenization = Tokenization(tokenization, _validated_chat)
        self._screened = ScreenedRequests(screener)

    @classmethod
    async def start(cls, config: AppConfig, start_session: SessionFactory, audit: AuditPort) -> "Frontend":
        """`audit`: gets the decisions of the screening. Raises ValueError for a config of the screening or of public
        prefixes that is not valid.
        """
        state = await vllm_state(config, start_session)
        chat = TextChat.adopt(state.openai_serving_chat)
        engine: RemoteEngine = chat.engine_client
        engine.public_prefixes = await PublicPrefixes.registered(
            config.public_prefixes,
            config.block_size,
            lambda messages: _prompt_of(chat, _validated(_CHAT, {"messages": messages})),
        )
        screener = None
        if config.safety.folder is not None:
            screener = Screener(config.safety, _tokens(chat), audit)
            screener.start()
        completion = TextCompletion.adopt(state.openai_serving_completion)
        messages = await MessageTranslator.start(state.anthropic_serving_messages)
        return cls(chat, completion, state.openai_serving_models, messages, state.serving_tokenization, screener)

    async def close(self) -> None:
        """End the processes that compile constraints, and the screening. No request may be open."""
        engine: RemoteEngine = self._chat.engine_client
        await engine.compilers.close()
        await self._screened.close()

    async def models(self) -> list[dict[str, Any]]:
        """The served models, as OpenAI's model objects plus vLLM's `max_model_len`."""
        cards = (await self._models.show_available_models()).data
        return [card.model_dump(include={"id", "object", "created", "owned_by", "max_model_len"}) for card in cards]

    async def chat_completion(self, body: Any, call: Call) -> dict[str, Any] | Frames:
        """Answer a chat completion. Raises ServingError (InvalidRequest for bad input)."""
        request = await self._screened.read(body, call, lambda shown: _validated_chat(_CHAT, shown))
        call.reasoning = ReasoningCounter(self._chat, request)
        answering = told(self._answer(self._chat.create_chat_completion, request, call), call)
        return await self._screened.answered(answering, call)

    async def completion(self, body: Any, call: Call) -> dict[str, Any] | Frames:
        """Answer a text completion. Raises ServingError (InvalidRequest for bad input)."""
        request = await self._screened.read(body, call, _validated_text)
        return await self._screened.answered(self._answer(self._completion.create_completion, request, call), call)

    async def reviewed(self, tenant: str, appealed: Appealed) -> Review:
        """What the screening finds now in a text that it has withheld, for those who decide on an appeal."""
        return await self._screened.reviewed(tenant, appealed)

    async def moderated(self, tenant: str, texts: Sequence[str]) -> tuple[str, list[Scored]]:
        """What has screened the texts, and what was found in each. Raises ServingError."""
        return await self._screened.moderated(tenant, texts)

    async def count_tokens(self, body: Any) -> int:
        """The number of tokens of a chat completion's prompt, which may be too long for the model. Raises ServingError
        (InvalidRequest for bad input, and for a prompt longer than COUNTED_WINDOWS context lengths).
        """
        request = await _validated_chat(_COUNTED, body)
        try:
            return len(await _prompt_of(self._chat, request))
        except ServingError as error:
            raise uncounted(error, "input") from error

    async def count_texts(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text by itself; an approximation for a long text (TextCounter)."""
        return await self._texts.counts(texts)

    async def tokens_of_text(self, text: str) -> list[int]:
        """The prompt of a short text that the model continues."""
        return cast(list[int], self._chat.renderer.get_tokenizer()(text)["input_ids"])

    async def tokens_of_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The prompt of a short chat that the model answers. Raises ServingError."""
        return await _prompt_of(self._chat, _validated(_CHAT, {"messages": list(messages)}))

    def _count(self, text: str) -> int:
        return len(self._chat.renderer.get_tokenizer()(text, add_special_tokens=False)["input_ids"])

    async def _answer(self, create: Callable[[Any], Any], request: Any, call: Call) -> dict[str, Any] | Frames:
        request.request_id = call.id
        call.has_tools = bool(getattr(request, "tools", None))
        CALL.set(call)
        try:
            answer = await create(request)
        except (*RENDERING_FAILED, GenerationError) as error:
            raise call.error or serving_error(error) from error
        finally:
            call.generations.clear()  # each generation refers to the call: this breaks the reference cycle
        if isinstance(answer, ErrorResponse):
            raise call.error or error_of_response(answer)
        if isinstance(answer, BaseModel):
            return answer.model_dump()
        return cast(Frames, answer)


async def vllm_state(config: AppConfig, start_session: SessionFactory) -> State:
    """vLLM's serving objects, built as vLLM's own server builds them (`init_app_state`), over a `RemoteEngine`."""
    quiet_refusals()
    arguments = _arguments(config)
    hasher, constraints = BlockHasher(config.block_size), config.ingress.structured_output
    engine = RemoteEngine(arguments, hasher, start_session, constraints)
    state = State()
    await init_app_state(cast(EngineClient, engine), state, arguments, ("generate",))
    quiet_parsers()
    return state


def _arguments(config: AppConfig) -> argparse.Namespace:
    """vLLM's server arguments: vLLM's defaults, the shared engine arguments, and the settings of the ingress."""
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    ingress = config.ingress
    settings = {
        **config.shared_engine,
        "model": resolve_model(config.model),
        "served_model_name": [config.model_name],
        "tool_call_parser": ingress.tool_call_parser,
        "enable_auto_tool_choice": ingress.tool_call_parser is not None,
        "chat_template": ingress.chat_template,
        "enable_prompt_tokens_details": True,
        "limit_mm_per_prompt": dict.fromkeys(
            ("image", "video", "audio"), 0
        ),  # vLLM fetches no media that `_check_media` misses
    }
    if ingress.reasoning_parser is not None:
        settings["reasoning_parser"] = ingress.reasoning_parser
        arguments.structured_outputs_config.reasoning_parser = ingress.reasoning_parser
    for name, value in settings.items():
        setattr(arguments, name, value)
    return arguments


async def _prompt_of(chat: OpenAIServingChat, request: Any) -> list[int]:
    """The prompt of a chat completion, in tokens. Raises ServingError."""
    try:
        rendered = await chat.render_chat_request(request)
    except RENDERING_FAILED as error:
        raise serving_error(error) from error
    if isinstance(rendered, ErrorResponse):
        raise error_of_response(rendered)
    _, (prompt, *_) = rendered
    return cast(list[int], prompt["prompt_token_ids"])


async def _validated_chat(model: FailFast[Any], body: Any) -> Any:
    """The body as vLLM's request model; validated in the checking thread if it has many messages. Raises
    InvalidRequest.
    """
    messages = body.get("messages") if isinstance(body, dict) else None
    if isinstance(messages, list) and len(messages) > MANY_MESSAGES:
        return await in_checking_thread(lambda: _validated_in_pieces(model, body))
    return _validated(model, body)


async def _validated_text(body: Any) -> Any:
    """The body as vLLM's request model; validated in the checking thread if it has many token ids. Raises
    InvalidRequest.
    """
    return await in_checking_thread(lambda: _validated(_TEXT, body)) if _is_long(body) else _validated(_TEXT, body)


def _tokens(chat: OpenAIServingChat) -> Tokens:
    """A client's token that the model has not got has no text; the request is refused for it later."""
    tokenizer = chat.renderer.get_tokenizer()
    known = range(len(tokenizer))
    return Tokens(
        lambda text: tokenizer.encode(text, add_special_tokens=False),
        lambda tokens: tokenizer.decode([token for token in tokens if token in known]),
        CHARACTERS_OF_TOKEN * chat.model_config.max_model_len,
    )


def _validated_in_pieces(model: FailFast[Any], body: dict[str, Any]) -> Any:
    """The body as vLLM's request model, validated MESSAGES_AT_A_TIME messages at a time. Raises InvalidRequest."""
    messages, size = body["messages"], MESSAGES_AT_A_TIME
    request = _validated(model, {**body, "messages": messages[:size]})
    for start in range(size, len(messages), size):
        request.messages += _validated(model, {"messages": messages[start : start + size]}, start).messages
    return request


def _is_long(body: Any) -> bool:
    """Whether the prompt of a text completion has more than MANY_TOKENS token ids."""
    prompt = body.get("prompt") if isinstance(body, dict) else None
    return isinstance(prompt, list) and sum(len(ids) if isinstance(ids, list) else 1 for ids in prompt) > MANY_TOKENS


def _validated(model: FailFast[Any], body: Any, first_message: int = 0) -> Any:
    """The body as vLLM's request model. `first_message` is the index of the body's first message in the chat of the
    client. Raises InvalidRequest, also for a field that a client may not set.
    """
    try:
        present = check_fields(body, model.fields)
        _check_media(present.get("messages"), first_message)
        return model.validate(present)
    except ValidationError as error:
        raise refusal(first_error(error), body, first_message) from error
    except VLLMClientError as error:
        raise serving_error(error) from error
    except (AttributeError, KeyError, TypeError) as error:  # raised by vLLM's validators for a value of a wrong type
        raise InvalidRequest(f"a field of the request has a wrong type ({error})", None, "invalid_type") from error


def _check_media(messages: Any, first_message: int) -> None:
    """Raise InvalidRequest for a message with media. vLLM's renderer would download the URLs in such a message
    (`has_non_text_content` finds the messages without a download).
    """
    if has_non_text_content(messages):
        number = first_message + next(
            number for number, message in enumerate(messages) if has_non_text_content([message])
        )
        raise InvalidRequest(
            "this service takes text only: no images, audio, video or embeddings",
            f"messages.{number}.content",
            "unsupported_value",
        )
