"""The digest of a request. It is equal for two requests of one tenant that are the same to an engine."""

from array import array
from hashlib import blake2b

from cluster.messages.generation import GenerateRequest

DIGEST_BYTES = 16
MAX_TAIL = 2048
"""Tokens at the end of the prompt that are hashed here. The hash of the last full KV block covers all tokens before. No
KV block is larger, so lower would leave tokens out; higher costs time for each request.
"""


def digest_of(request: GenerateRequest, block_hashes: list[bytes]) -> bytes:
    """`block_hashes`: hashes of the prompt's full KV blocks, chained from its start; empty if no block is full."""
    tokens = request.prompt_token_ids[-MAX_TAIL:] if block_hashes else request.prompt_token_ids
    digest = blake2b(array("q", tokens), digest_size=DIGEST_BYTES)
    shape = (len(request.prompt_token_ids), request.num_sequences, request.max_output_tokens, request.cache_salt)
    for part in (block_hashes[-1] if block_hashes else b"", repr(shape).encode(), request.sampling_params):
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()
