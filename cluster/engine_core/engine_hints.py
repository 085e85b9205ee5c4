"""What a worker tells its engine's core: how fast engines of its kind are, whose prompt comes first, which objective
bounds a step, who gives up memory first, how much of a prompt is public, and how much memory is kept. Pure.
"""

from typing import Any

ENGINE_KIND = "baton_engine_kind"
"""Key of `EngineShape.kind` in the settings of the engine's connector, the only configuration of Baton's that the
engine's core has.
"""
KEPT_SHARE = "baton_kept_share"
"""Key of `PoolConfig.kept_share`, in the same place. 0 where it is missing."""
TPOT_KEY = "baton_tpot_s"
"""Key of a request's TPOT objective, in seconds, in the `extra_args` of its SamplingParams, which vLLM hands to the
engine's core unread.
"""
RANK_KEY = "baton_rank"
"""Key of the rank of a request's SLO class, in the same place. Rank 0 is left out."""
AWAIT = "baton_await"
"""The name under which the front of the engine calls the core when an answer has called tools, with the fields of
ToolWait. The core ignores a prompt that it does not know.
"""
PUBLIC_TOKENS_KEY = "baton_public_tokens"
"""Key of `GenerateRequest.num_public_tokens`, in the same place. 0 is left out."""
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


def extra_args(
    kv_transfer_params: dict[str, Any] | None, tpot_s: float | None, rank: int, num_public_tokens: int = 0
) -> dict[str, Any] | None:
    """The `extra_args` of a request's SamplingParams. A request that only computes its prompt for another engine gives
    no second token, so its TPOT objective bounds nothing here.
    """
    extra: dict[str, Any] = {"kv_transfer_params": kv_transfer_params} if kv_transfer_params else {}
    if tpot_s is not None and not (kv_transfer_params or {}).get("do_remote_decode"):
        extra[TPOT_KEY] = tpot_s
    if rank:
        extra[RANK_KEY] = rank
    if num_public_tokens:
        extra[PUBLIC_TOKENS_KEY] = num_public_tokens
    return extra or None
