"""Whether a decode engine reads from the blocks that it pulled what the prefill engine wrote into them.
Pure.

Both engines report the log-probabilities of the most likely first tokens: the prefill engine from the KV that it
computed, the decode engine from the KV that it pulled. Equal KV gives equal logits but for rounding; blocks of another
prompt, or of none, give others.
"""

from collections.abc import Sequence

from cluster.messages.generation import TokenLogprob

NUM_TOP = 5
"""Most likely tokens that are compared. More detects more wrong handoffs; fewer costs less to compute."""

MIN_COMMON = 3
"""Tokens that both engines must name: rounding swaps the last ones. More rejects good handoffs; fewer misses wrong
ones.
"""

TOLERANCE = 0.5
"""Largest accepted difference of a log-probability, in nats. Engines that batch differently differ by rounding: some
hundredths in bfloat16, more for unlikely tokens. Lower quarantines good pairs; higher misses a handoff with few wrong
blocks.
"""


def distance(reference: Sequence[TokenLogprob], observed: Sequence[TokenLogprob]) -> float:
    """The largest difference of a token's log-probability, in nats, over the tokens that both engines name. Infinite if
    `observed` lacks the most likely token of `reference`, or if both name fewer than MIN_COMMON. Unlikely tokens count,
    too: after many prompts, the most likely first token depends little on the prompt.
    """
    theirs = {token.token_id: token.logprob for token in observed}
    common = [abs(token.logprob - theirs[token.token_id]) for token in reference if token.token_id in theirs]
    if len(common) < MIN_COMMON or max(reference, key=lambda token: token.logprob).token_id not in theirs:
        return float("inf")
    return max(common)


def agrees(distance: float) -> bool:
    return distance <= TOLERANCE
