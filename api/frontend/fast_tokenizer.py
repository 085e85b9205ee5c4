"""Prompts to token ids, at less cost than in vLLM's renderer, and long lists of token ids to text.

A call of a Hugging Face tokenizer also computes the offset of each token and masks, which vLLM does not read. vLLM's
renderer hands each prompt to a thread, although a short prompt takes less time than the change of thread. And its
`decode` holds the interpreter, in whichever thread it runs: a million ids would stop the event loop for a second.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerFast
from vllm.renderers import BaseRenderer
from vllm.renderers.hf import HfRenderer, safe_apply_chat_template

SHORT_CHARS = 4096
"""Longest text that is rendered and tokenized on the event loop, in characters: 4096 take half a millisecond. A higher
value blocks the event loop for longer; with a lower value, more prompts wait for a thread.
"""

MANY_IDS = 4096
"""Most token ids whose text is made with the interpreter held, in number: 4096 take 5 ms. A higher value blocks the
event loop for longer; with a lower value, more lists are decoded as a batch of one, which costs a copy.
"""

MANY_CHARS = 1 << 17
"""Longest text that is tokenized in vLLM's own thread, in characters: 131,072 take 0.1 s. Longer ones have a thread of
their own, where they wait for one another alone. With a higher value, ordinary prompts of others wait for longer;
with a lower value, more prompts wait behind very long ones, which take seconds for each million characters.
"""
_MANY = ThreadPoolExecutor(1, "baton-long-prompts")

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
    tokenize, tokenize_usually = renderer._tokenize_prompt, renderer._tokenize_prompt_async

    def tokenize_by_length(prompt: Any, params: Any) -> Awaitable[Any]:
        if len(prompt["prompt"]) <= MANY_CHARS:
            return tokenize_usually(prompt, params)
        return asyncio.get_running_loop().run_in_executor(_MANY, tokenize, prompt, params)

    renderer._tokenize_prompt_async = _at_once_if(
        lambda prompt, params: len(prompt["prompt"]) <= SHORT_CHARS, tokenize, tokenize_by_length
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

        def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
            # Not `_decode`: vLLM's pool of tokenizers calls that of another copy
            if options or not _are_many(token_ids) or _cleans_up(self):
                return super().decode(token_ids, skip_special_tokens=skip_special_tokens, **options)
            return plain.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)[0]

    quick = copy(tokenizer)
    quick.__class__ = IdsOnly
    return quick


def _are_many(token_ids: Any) -> bool:
    """Whether this is one long list of token ids, and no list of lists."""
    return isinstance(token_ids, list) and len(token_ids) > MANY_IDS and isinstance(token_ids[0], int)


def _cleans_up(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether Hugging Face changes the spaces of a decoded text. It does not for BPE, unless it is forced to."""
    is_forced = tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    is_bpe = type(tokenizer.backend_tokenizer.model).__name__ == "BPE"
    return bool(tokenizer.clean_up_tokenization_spaces and (is_forced or not is_bpe))


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
