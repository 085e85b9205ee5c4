"""Requests with given mean lengths and a given share of prefix hits, for which no trace and no mix is at hand.

Lengths are log-normal, with the spread of the mix `poisson` up to LONGEST. They are an even sample of that distribution
in random order, so that few requests have the mean exactly. Arrivals are a Poisson process. Hits are the first blocks
of a prefix that all prompts share, in proportion to the length of each prompt.
"""

import math
import random
from hashlib import blake2b
from statistics import NormalDist, fmean

from cluster.messages.kv_events import KEY_BYTES
from cluster.simulation.traffic.workload import BLOCK_TOKENS, Arrival

PROMPT_SIGMA, ANSWER_SIGMA = 1.08, 0.80
"""Standard deviations of the logarithms of the lengths: those of the mix `poisson`. Higher makes a few requests longer,
and the others shorter.
"""
LONGEST = 8.0
"""Length at which lengths are cut, as a multiple of the median before the cut. Higher makes the longest request longer;
lower makes lengths more alike.
"""
HIT_ERROR = 0.02
"""Difference between the wanted and the real share of hits up to which requests count as wanted. Higher plans for other
hits than were asked for; lower refuses shares that blocks cannot give exactly.
"""


def alike_requests(
    rate_per_s: float, prompt: float, answer: float, hit_share: float, number: int, seed: int = 0
) -> list[Arrival]:
    """`prompt` and `answer`: mean tokens. `hit_share`: share of the prompt tokens that caches hold.

    Raises:
        ValueError: prompts are too short for this share of hits.
    """
    rng = random.Random(seed)
    prompts, answers = _lengths(prompt, PROMPT_SIGMA, number, rng), _lengths(answer, ANSWER_SIGMA, number, rng)
    prefix = [_block(index) for index in range(max(prompts) // BLOCK_TOKENS + 1)]
    rows, owed, now = [], 0.0, 0.0
    for num_prompt, num_output in zip(prompts, answers, strict=True):
        owed += hit_share * num_prompt
        num_hits = min(int(owed / BLOCK_TOKENS), (num_prompt - 1) // BLOCK_TOKENS)
        owed -= num_hits * BLOCK_TOKENS
        rows.append(
            Arrival(arrival_s=now, num_prompt=num_prompt, num_output=num_output, block_hashes=prefix[:num_hits])
        )
        now += rng.expovariate(rate_per_s)
    if owed > HIT_ERROR * sum(prompts):
        raise ValueError(
            f"prompts of {prompt:g} tokens are too short for a share of {hit_share:g} of prefix hits: hits are counted "
            f"in full blocks of {BLOCK_TOKENS} tokens. Give the tokens that are computed as the prompt, and no hits"
        )
    return rows


def _lengths(mean: float, sigma: float, number: int, rng: random.Random) -> list[int]:
    if mean == 1:
        return [1] * number
    normal = NormalDist()
    spread = [min(math.exp(sigma * normal.inv_cdf((index + 0.5) / number)), LONGEST) for index in range(number)]
    lengths = [max(1, round(mean * value / fmean(spread))) for value in spread]
    rng.shuffle(lengths)
    return lengths


def _block(index: int) -> bytes:
    return blake2b(f"shared {index}".encode(), digest_size=KEY_BYTES).digest()
