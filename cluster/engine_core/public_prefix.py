"""The salt in the hashes of KV blocks, where a prompt begins with a public prefix.

vLLM puts the salt of a request into the hash of its first block, and chains all further hashes to it. The blocks of a
public prefix have a key in the place of the salt that all requests with a public prefix have in common. The salt of the
request enters with the first block that is not public. So the public blocks are found by all of these requests, and the
blocks after them by requests with the same salt alone.

`salt_key` is the rule. The ingress hashes with it (cluster/engine/block_hashes.py), and so does an engine's core in
which `install` was called.
"""

from typing import Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request

from cluster.engine_core.engine_hints import PUBLIC_TOKENS_KEY

SALT = "cache_salt"
"""vLLM's name of a salt among the keys of a block."""
PUBLIC = ("public_prefix", "")
"""The key of the first block of a public prefix. Its name is not SALT, so no salt of a request makes the same hash."""

_extra_keys = kv_cache_utils.generate_block_hash_extra_keys


def salt_key(start: int, end: int, salt: str | None, num_public_tokens: int) -> tuple[str, str] | None:
    """The key in the hash of the block of the tokens from `start` to `end`; None for a block that gets its key through
    the chain. A block is public if all its tokens are. Without a salt, no block has a key.
    """
    if not salt:
        return None
    if end <= num_public_tokens:
        return PUBLIC if start == 0 else None
    return (SALT, salt) if start <= num_public_tokens else None


def install() -> None:
    """Have all engines of this process hash by `salt_key`. May be called again."""
    kv_cache_utils.generate_block_hash_extra_keys = _keys_of_block


def _keys_of_block(request: Request, start: int, end: int, start_mm_idx: int) -> tuple[tuple[Any, ...] | None, int]:
    """A replacement of vLLM's function, which its block hasher calls for each block of a request."""
    keys, next_mm_idx = _extra_keys(request, start, end, start_mm_idx)
    params = request.sampling_params
    num_public = params.extra_args.get(PUBLIC_TOKENS_KEY, 0) if params and params.extra_args else 0
    if not num_public:
        return keys, next_mm_idx
    others = tuple(key for key in keys or () if key[0] != SALT)
    key = salt_key(start, end, request.cache_salt, num_public)
    return (others if key is None else (*others, key)) or None, next_mm_idx
