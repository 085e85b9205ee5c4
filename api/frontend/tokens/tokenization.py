"""Prompts to tokens and tokens to text, as vLLM's POST /tokenize and /detokenize answer.

vLLM's `ServingTokenization` renders and tokenizes. It would take prompts and lists of ids of any length, and would look
up the texts of tokens on the event loop. This module bounds both by COUNTED_WINDOWS, and works on long ones in threads.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
from vllm.exceptions import VLLMClientError

from api.frontend.checking_thread import in_checking_thread
from api.frontend.tokens.windows import COUNTED_WINDOWS, counted_params, most_counted, uncounted
from api.frontend.vllm_errors import RENDERING_FAILED, error_of_response, serving_error
from api.wire.validation import FailFast
from cluster.errors import InvalidRequest, ServingError

T = TypeVar("T")

MANY_IDS = 4096
"""Most token ids whose texts are looked up, or that are checked and encoded, on the event loop, in number. 4096 take up
to 3 ms. A higher value blocks the event loop for longer; a lower value sends more requests through the checking thread.
"""

Validated = Callable[[FailFast[Any], Any], Awaitable[Any]]
"""A body as a request model of vLLM's. Raises InvalidRequest, also for fields that clients may not set."""


class _Text(TokenizeCompletionRequest):
    def build_tok_params(self, model_config: Any) -> Any:
        return counted_params(super().build_tok_params(model_config), model_config)


class _Chat(TokenizeChatRequest):
    def build_tok_params(self, model_config: Any) -> Any:
        return counted_params(super().build_tok_params(model_config), model_config)


_TEXT: FailFast[_Text] = FailFast(_Text)
_CHAT: FailFast[_Chat] = FailFast(_Chat)
_DETOKENIZE: FailFast[DetokenizeRequest] = FailFast(DetokenizeRequest)


class Tokenization:
    """Answers are bodies of JSON, encoded."""

    def __init__(self, serving: ServingTokenization, validated: Validated) -> None:
        self._serving = serving
        self._validated = validated

    async def tokenized(self, body: Any) -> bytes:
        """The tokens of a `prompt`, or of the prompt that `messages` make.

        Raises:
            InvalidRequest: the body is wrong, or the prompt is longer than COUNTED_WINDOWS context lengths.
            NotFound: the model is not served.
        """
        is_chat = isinstance(body, dict) and "messages" in body
        request = await self._validated(_CHAT if is_chat else _TEXT, body)
        with_texts, request.return_token_strs = bool(request.return_token_strs), False
        try:
            answer = await self._asked(self._serving.create_tokenize(request, None))
        except ServingError as error:
            raise uncounted(error, "messages" if is_chat else "prompt") from error
        return await _at_once_or_in_thread(
            answer.count, lambda: msgspec.json.encode(self._listed(answer.tokens, with_texts))
        )

    async def detokenized(self, body: Any) -> bytes:
        """The text of `tokens`.

        Raises:
            InvalidRequest: the body is wrong, the model has no such token, or there are more tokens than in
                COUNTED_WINDOWS context lengths.
            NotFound: the model is not served.
        """
        ids = body.get("tokens") if isinstance(body, dict) else None
        if not isinstance(ids, list):
            await self._validated(_DETOKENIZE, body)
            raise InvalidRequest("tokens must be a list of token ids", "tokens", "invalid_type")
        # The ids are checked here: pydantic would hold the interpreter while it makes an object of each
        request = await self._validated(_DETOKENIZE, {**body, "tokens": []})
        await _at_once_or_in_thread(len(ids), lambda: self._check_ids(ids))
        request.tokens = ids
        answer = await self._asked(self._serving.create_detokenize(request, None))
        return await _at_once_or_in_thread(len(ids), lambda: msgspec.json.encode({"prompt": answer.prompt}))

    async def _asked(self, asking: Awaitable[Any]) -> Any:
        """The answer of vLLM's serving object. Raises ServingError."""
        try:
            answer = await asking
        except RENDERING_FAILED as error:
            raise serving_error(error) from error
        if isinstance(answer, ErrorResponse):
            raise error_of_response(answer)
        return answer

    def _listed(self, ids: list[int], with_texts: bool) -> dict[str, Any]:
        """vLLM's TokenizeResponse."""
        serving = self._serving
        return {
            "count": len(ids),
            "max_model_len": serving.model_config.max_model_len,
            "tokens": ids,
            "token_strs": serving.renderer.get_tokenizer().convert_ids_to_tokens(ids) if with_texts else None,
        }

    def _check_ids(self, ids: list[Any]) -> None:
        most = most_counted(self._serving.model_config)
        if len(ids) > most:
            raise InvalidRequest(
                f"tokens has {len(ids)} entries, and may have {most}: {COUNTED_WINDOWS} times the context length",
                "tokens",
                "array_above_max_length",
            )
        if not set(map(type, ids)) <= {int}:
            raise InvalidRequest("tokens must be a list of token ids", "tokens", "invalid_type")
        try:
            self._serving.renderer.validate_token_ids(ids, parameter="tokens")
        except VLLMClientError as error:
            raise serving_error(error) from error


async def _at_once_or_in_thread(num_ids: int, work: Callable[[], T]) -> T:
    return work() if num_ids <= MANY_IDS else await in_checking_thread(work)
