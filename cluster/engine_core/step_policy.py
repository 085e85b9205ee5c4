"""What the worker and its engine's core must see alike about steps: how long they are, and whose prompt comes first.
Pure.
"""

from typing import Any

MIXED_CHUNK_TOKENS = "baton_mixed_chunk_tokens"
"""Key of `mixed_chunk_tokens` (cluster/config/pools.py) in the settings of the engine's connector, the only
configuration of Baton's that the engine's core has.
"""
NO_DEADLINE = 1 << 53
"""Priority of a request without a deadline, which comes after all others: milliseconds that no clock reaches. Lower
could come before a deadline; 2^63 and more do not fit into vLLM's message.
"""


def priority_of(first_token_within_s: float | None, now: float, *, is_pulled: bool = False) -> int:
    """vLLM's priority of a request, whose lowest number comes first: the time at which the first token is due, in
    milliseconds of the worker's monotonic clock, on which `now` is in seconds.

    `is_pulled`: another engine has computed the prompt. Such a request is due at once. Its pull takes none of this
    engine's steps, and the blocks that it reads are lent for a short time.
    """
    if is_pulled:
        first_token_within_s = min(first_token_within_s or 0.0, 0.0)
    return NO_DEADLINE if first_token_within_s is None else int((now + first_token_within_s) * 1000)


def mixed_chunk(config: Any, mixed_chunk_tokens: int) -> int:
    """Most prompt tokens of a step in which requests decode, for the engine with this VllmConfig: as configured, but
    enough for every prompt to go on, however many requests decode. Some models take no smaller part of a prompt than a
    KV block, or than what their draft looks ahead. Without chunked prefill, only the step itself is a bound.
    """
    scheduling, model, cache = config.scheduler_config, config.model_config, config.cache_config
    most = int(scheduling.max_num_scheduled_tokens or scheduling.max_num_batched_tokens)
    if not scheduling.enable_chunked_prefill:
        return most
    least = 1 + max(config.num_speculative_tokens, config.num_prefill_lookahead_tokens)
    if (model.is_hybrid or model.is_attention_free) and cache.mamba_cache_mode == "align":
        least = max(least, cache.block_size)
    return int(min(max(mixed_chunk_tokens, least), most))
