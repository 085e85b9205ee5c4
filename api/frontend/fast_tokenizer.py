"""Prompts to token ids, at less cost than in vLLM's renderer.

A call of a Hugging Face tokenizer also computes the offset of each token and masks, which vLLM does not read. vLLM's
renderer hands each prompt to a thread, although a short prompt takes less time than the change of thread.
"""

from collections.abc import Awaitable, Callable
from copy import copy, deepcopy
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerFast
from vllm.renderers import BaseRenderer
from vllm.renderers.hf import HfRenderer, safe_apply_chat_template

SHORT_CHARS = 4096
"""Longest text that is rendered and tokenized on the event loop, in characters: 4096 take half a millisecond. A higher
value blocks the event loop for longer; with a lower value, more prompts wait for a thread.
"""

_ENCODING_OPTIONS = {"add_special_tokens", "truncation", "max_length"}
_TEMPLATE_OPTIONS = {
    "add_generation_prompt",
    "chat_template",
    "cohere_format",
    "continue_final_message",
    "return_dict",
    "tokenize",
}
"""Options that vLLM renders every chat with. With an option that a request adds (tools, for example), a template may
take long: such a chat is rendered in a thread.
"""

Asynchronous = Callable[..., Awaitable[Any]]


def tokenize_faster(renderer: BaseRenderer[Any]) -> None:
    """Let a renderer tokenize short prompts on the event loop, and all prompts without offsets and masks.

    The methods that are replaced are vLLM's `BaseRenderer._tokenize_prompt_async` and
    `HfRenderer._apply_chat_template_async`. A renderer stays unchanged if its tokenizer overrides the encoding of the
    `tokenizers` library.
    """
    tokenizer = renderer.tokenizer
    if (
        not isinstance(renderer, HfRenderer)
        or not isinstance(tokenizer, PreTrainedTokenizerFast)
        or type(tokenizer)._encode_plus is not PreTrainedTokenizerFast._encode_plus
    ):
        return
    renderer.tokenizer = ids_only(tokenizer)
    renderer._tokenize_prompt_async = _at_once_if(
        lambda prompt, params: len(prompt["prompt"]) <= SHORT_CHARS,
        renderer._tokenize_prompt,
        renderer._tokenize_prompt_async,
    )
    renderer._apply_chat_template_async = _at_once_if(
        _is_short_chat, safe_apply_chat_template, renderer._apply_chat_template_async
    )


def ids_only(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A copy of the tokenizer that takes a shorter way if it is called with one text for its ids alone."""
    plain = deepcopy(tokenizer.backend_tokenizer)  # `_encode_plus` of Hugging Face changes the settings of the original
    plain.no_truncation()
    plain.no_padding()
    plain.encode_special_tokens = tokenizer.split_special_tokens

    class IdsOnly(type(tokenizer)):  # type: ignore[misc]
        def __call__(self, text: Any = None, *args: Any, **options: Any) -> BatchEncoding:
            if isinstance(text, str) and not args and options.keys() <= _ENCODING_OPTIONS:
                ids = plain.encode_batch_fast([text], add_special_tokens=options.get("add_special_tokens", True))[0].ids
                if not options.get("truncation") or len(ids) <= (options.get("max_length") or 0):
                    return BatchEncoding({"input_ids": ids})
            return super().__call__(text, *args, **options)

    quick = copy(tokenizer)
    quick.__class__ = IdsOnly
    return quick


def _at_once_if(is_short: Callable[..., bool], do: Callable[..., Any], do_in_thread: Asynchronous) -> Asynchronous:
    async def at_once(*args: Any, **options: Any) -> Any:
        return do(*args, **options)

    def choose(*args: Any, **options: Any) -> Awaitable[Any]:
        return (at_once if is_short(*args, **options) else do_in_thread)(*args, **options)

    return choose


def _is_short_chat(_: object, __: object, messages: list[dict[str, Any]], **options: Any) -> bool:
    texts = [message.get("content") or "" for message in messages]
    return (
        options.keys() <= _TEMPLATE_OPTIONS
        and all(isinstance(text, str) for text in texts)
        and sum(map(len, texts)) <= SHORT_CHARS
        and not any("tool_calls" in message for message in messages)
    )
