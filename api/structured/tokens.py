"""The data of the model's tokenizer that a trial (api/structured/trial.py) needs, as text for its process."""

from copy import copy
from typing import Any

import xgrammar
from transformers import PreTrainedTokenizerFast

BYTES = "byte"
"""llguidance's own tokenizer of single bytes. It replaces a tokenizer that cannot be written as text. The cost of
compiling depends mainly on the constraint, and little on the vocabulary.
"""


def tokens_of(tokenizer: Any, vocab_size: int, has_tags: bool) -> dict[str, Any]:
    """The tokenizer's data, with that of structural tags if `has_tags`. Takes 1 s for a large vocabulary."""
    width = max(vocab_size, len(tokenizer))
    tags = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=width).serialize_json() if has_tags else ""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return {"tokenizer": BYTES, "n_vocab": None, "eos": None, "tag_tokens": tags}
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return {"tokenizer": backend.to_str(), "n_vocab": width, "eos": tokenizer.eos_token_id, "tag_tokens": tags}
