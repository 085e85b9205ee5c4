"""Whether a decode engine reads from the blocks that it pulled what the prefill engine wrote into them, and if not,
which of the two is wrong. Pure.

Both engines report the log-probabilities of the most likely first tokens: the prefill engine from the KV that it
computed, the decode engine from the KV that it pulled. Equal KV gives equal logits but for rounding; blocks of another
prompt, or of none, give others. What counts as rounding is learned (kvtransfer/tolerance.py).

If the two are farther apart, the decode engine computes the prompt once more, without the pulled blocks. This third
opinion tells which of the first two is the odd one out. Rounding gives three distances of about the same size.
"""

from collections.abc import Sequence
from math import inf, isfinite

from cluster.messages.generation import TokenLogprob
from cluster.messages.scheduler_events import HandoffVerdict

NUM_TOP = 5
"""Most likely tokens that are compared. More detects more wrong handoffs; fewer costs less to compute."""

MIN_COMMON = 3
"""Tokens that both engines must name: rounding swaps the last ones. More rejects good handoffs; fewer misses wrong
ones.
"""

MAX_TOLERANCE = 2.0
"""Largest distance that can ever count as rounding, in nats: a token would be 7 times as likely for one engine as for
the other. It bounds what can be learned. Higher lets a slow drift, or a client with strange prompts, hide wrong blocks;
lower convicts pairs whose model rounds more coarsely.
"""

SEPARATION = 3.0
"""How many times as far from the two others as they are from each other the odd one out must be. Rounding gives each of
three engines the same distances from the others, so it separates one by chance. Higher decides fewer cases; lower
blames rounding on a worker.
"""

MAX_STRIKES = 2
"""Wrong handoffs of a pair, one after another, that convict it. More gives out more wrong copies before the pair stops;
one empties caches for a single error of the check.
"""


def distance(reference: Sequence[TokenLogprob], observed: Sequence[TokenLogprob]) -> float:
    """The largest difference of a token's log-probability, in nats, over the tokens that both engines name. Infinite if
    `observed` lacks the most likely token of `reference`, if both name fewer than MIN_COMMON, or if a difference is not
    a number. Unlikely tokens count, too: after many prompts, the most likely first token depends little on the prompt.
    """
    theirs = {token.token_id: token.logprob for token in observed}
    common = [abs(token.logprob - theirs[token.token_id]) for token in reference if token.token_id in theirs]
    if len(common) < MIN_COMMON or max(reference, key=lambda token: token.logprob).token_id not in theirs:
        return inf
    return max(common) if all(map(isfinite, common)) else inf


def verdict(check: float, prefill: float, copy: float, tolerance: float) -> HandoffVerdict:
    """What a third opinion makes of a check that is beyond the tolerance. All numbers are in nats. `check`: distance
    between the prefill engine and the decode engine with the pulled copy; `prefill` and `copy`: distances of these two
    from the decode engine without the copy.
    """
    if copy > max(tolerance, SEPARATION * prefill) and check > SEPARATION * prefill:
        return HandoffVerdict.COPY_WRONG
    if prefill > max(tolerance, SEPARATION * copy) and check > SEPARATION * copy:
        return HandoffVerdict.PREFILL_WRONG
    if max(check, prefill, copy) <= MAX_TOLERANCE:
        return HandoffVerdict.CLEARED
    return HandoffVerdict.UNCLEAR
