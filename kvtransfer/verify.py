"""Whether a decode engine reads from the blocks that it pulled what the prefill engine wrote into them.

Both engines report the log-probabilities of the most likely first tokens: the prefill engine from the KV that it
computed, the decode engine from the KV that it pulled. Equal KV gives equal logits but for rounding; blocks of another
prompt, or of none, give others.
"""

from collections.abc import Sequence

from cluster.messages.generation import TokenLogprob

NUM_TOP = 5
"""Most likely tokens that are compared."""

MIN_COMMON = 3
"""So many of them both engines must name: rounding swaps the last ones."""

TOLERANCE = 0.5
"""In nats. Engines that batch differently differ by rounding: some hundredths in bfloat16, more for unlikely tokens.
Too tight quarantines good pairs, too loose misses a handoff of which little is wrong.
"""


def distance(reference: Sequence[TokenLogprob], observed: Sequence[TokenLogprob]) -> float:
    """The largest difference of a token's log-probability, in nats, over the tokens that both name. Infinite where the
    other engine does not name the reference's most likely token, or hardly any. The unlikely ones count too: after many
    a prompt the most likely first token says little about what stands in it.
    """
    theirs = {token.token_id: token.logprob for token in observed}
    common = [abs(token.logprob - theirs[token.token_id]) for token in reference if token.token_id in theirs]
    if len(common) < MIN_COMMON or max(reference, key=lambda token: token.logprob).token_id not in theirs:
        return float("inf")
    return max(common)


def agrees(distance: float) -> bool:
    return distance <= TOLERANCE
