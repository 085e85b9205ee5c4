"""The hashes by which the engines know the KV blocks of a prompt, computed with vLLM's own functions.

Engines and ingress must agree on all that a hash depends on. The algorithm and the block size are engine arguments
(cluster/config/pools.py). The seed of the chain is vLLM's fixed one, unless the environment sets another
(`use_fixed_seed`). The salt comes with the request, and so does the number of tokens that are hashed without it
(cluster/engine_core/public_prefix.py). Messages carry the last KEY_BYTES of a hash, which vLLM's events contain, too.
"""

import asyncio
import os
from collections.abc import Iterator

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

from cluster.config.pools import BLOCK_HASH_ALGORITHM
from cluster.engine_core.public_prefix import salt_key
from cluster.messages.kv_events import KEY_BYTES

BLOCKS_AT_A_TIME = 256
"""Blocks that are hashed before the event loop may run: half a millisecond. More delays the streams of other requests;
fewer makes long prompts slower.
"""


def use_fixed_seed() -> None:
    """Remove PYTHONHASHSEED for this process and those that it starts from now on. vLLM would hash with it, and nodes
    on which it differs would not know each other's blocks.
    """
    os.environ.pop("PYTHONHASHSEED", None)


class BlockHasher:
    def __init__(self, block_size: int) -> None:
        use_fixed_seed()
        self.block_size = block_size
        self._hash = get_hash_fn_by_name(BLOCK_HASH_ALGORITHM)
        kv_cache_utils.init_none_hash(self._hash)

    async def of_prompt(self, token_ids: list[int], salt: str | None, num_public_tokens: int = 0) -> list[bytes]:
        """The hash of each full block of the prompt, which covers all tokens up to the end of the block.
        `num_public_tokens`: as in `GenerateRequest`.
        """
        hashes: list[bytes] = []
        for block_hash in self._chain(token_ids, salt, num_public_tokens):
            if len(hashes) % BLOCKS_AT_A_TIME == BLOCKS_AT_A_TIME - 1:
                await asyncio.sleep(0)
            hashes.append(block_hash)
        return hashes

    def _chain(self, token_ids: list[int], salt: str | None, num_public_tokens: int) -> Iterator[bytes]:
        block_hash = None
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            start = end - self.block_size
            key = salt_key(start, end, salt, num_public_tokens)
            extra_keys = None if key is None else (key,)
            block_hash = kv_cache_utils.hash_block_tokens(self._hash, block_hash, token_ids[start:end], extra_keys)
            yield block_hash[-KEY_BYTES:]
