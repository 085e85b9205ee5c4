"""What compiling a constraint needs of the model's tokenizer, as text for another process."""

from copy import copy
from typing import Any

import xgrammar
from transformers import PreTrainedTokenizerFast

BYTES = "byte"
"""llguidance's own tokenizer of single bytes. It stands for one that cannot be written as text: what compiling costs
depends on the constraint first, and on the vocabulary little.
"""


def tokens_of(tokenizer: Any, vocab_size: int, has_tags: bool) -> dict[str, Any]:
    """`has_tags`: structural tags may come. Takes a second for a large vocabulary."""
    width = max(vocab_size, len(tokenizer))
    tags = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=width).serialize_json() if has_tags else ""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return {"tokenizer": BYTES, "n_vocab": None, "eos": None, "tag_tokens": tags}
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return {"tokenizer": backend.to_str(), "n_vocab": width, "eos": tokenizer.eos_token_id, "tag_tokens": tags}
