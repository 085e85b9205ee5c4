"""The hashes by which the engines know the KV blocks of a prompt, computed as they do, by vLLM's own functions.

Engines and ingress must agree on all that goes into a hash: the algorithm and the size of a block, which are engine
arguments (cluster/config/pools.py), the seed of the chain, which is vLLM's fixed one as long as the environment sets no
other (`use_fixed_seed`), and the salt. A hash is shipped as its last KEY_BYTES, which is what vLLM's events say of a
block.
"""

import asyncio
import os
from collections.abc import Iterator

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

from cluster.config.pools import BLOCK_HASH_ALGORITHM
from cluster.messages.kv_events import KEY_BYTES

BLOCKS_AT_A_TIME = 256
"""Half a millisecond: longer prompts let the event loop go in between."""


def use_fixed_seed() -> None:
    """Where PYTHONHASHSEED is set, vLLM hashes with it, and where it differs between nodes nobody agrees. For this
    process and those that it starts from now on.
    """
    os.environ.pop("PYTHONHASHSEED", None)


class BlockHasher:
    def __init__(self, block_size: int) -> None:
        use_fixed_seed()
        self.block_size = block_size
        self._hash = get_hash_fn_by_name(BLOCK_HASH_ALGORITHM)
        kv_cache_utils.init_none_hash(self._hash)

    async def of_prompt(self, token_ids: list[int], salt: str | None) -> list[bytes]:
        """Of the prompt's full blocks, each hash of all tokens up to the block's end."""
        hashes: list[bytes] = []
        for block_hash in self._chain(token_ids, salt):
            if len(hashes) % BLOCKS_AT_A_TIME == BLOCKS_AT_A_TIME - 1:
                await asyncio.sleep(0)
            hashes.append(block_hash)
        return hashes

    def _chain(self, token_ids: list[int], salt: str | None) -> Iterator[bytes]:
        block_hash, extra_keys = None, (("cache_salt", salt),) if salt else None
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            tokens = token_ids[end - self.block_size : end]
            block_hash = kv_cache_utils.hash_block_tokens(self._hash, block_hash, tokens, extra_keys)
            extra_keys = None  # of the first block alone; the others have it through the chain
            yield block_hash[-KEY_BYTES:]
