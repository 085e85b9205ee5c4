"""Demand: what requests ask of workers, as means over a sample of them. Pure.

Prefix hits are those of a cache that forgets nothing: a block of a prompt counts as cached if an earlier prompt of the
sample had it. Real caches are smaller, so the hits are an upper bound. The simulated cell has real caches.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from cluster.simulation.traffic.workload import BLOCK_TOKENS, Arrival
from cluster.slo import Objective, SloConfig
from router.prediction.step_model import prompt_attention


class DemandedRequest(NamedTuple):
    num_prompt: int
    num_cached: int
    """Prompt tokens that are found in caches."""
    num_output: int
    objective: Objective

    @property
    def num_new(self) -> int:
        return self.num_prompt - self.num_cached

    @property
    def num_decoded(self) -> int:
        """Tokens after the first one, which the prefill gives."""
        return self.num_output - 1


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The sample, and its means per request."""

    requests: tuple[DemandedRequest, ...]
    prompt: float
    """Prompt tokens."""
    new: float
    """Prompt tokens that are computed."""
    attended: float
    """Pairs of tokens that the attention of the computed prompt tokens has: `prompt_attention`."""
    output: float
    """Answer tokens."""
    decoded: float
    """Answer tokens after the first one."""
    context: float
    """Tokens that a request that decodes has before it, over all its steps."""
    context_at_end: float
    """Tokens of a whole request, prompt and answer. Each request is weighted by its decode steps."""
    longest: int
    """Tokens of the longest request, prompt and answer."""

    @property
    def hit_share(self) -> float:
        return 1 - self.new / self.prompt

    def kv_bytes(self, kv_bytes_per_token: int) -> float:
        """Mean bytes that a handoff of the whole prompt carries."""
        return self.prompt * kv_bytes_per_token


def demand_of(rows: Sequence[Arrival], slos: SloConfig) -> Demand:
    """The demand of a sample of requests, in order of arrival.

    Raises:
        ValueError: there are no rows.
    """
    return demand_from(_with_hits(rows, slos))


def demand_from(requests: tuple[DemandedRequest, ...]) -> Demand:
    """The demand of a sample of requests.

    Raises:
        ValueError: there are no requests.
    """
    if not requests:
        raise ValueError("there are no requests to plan for")
    steps = sum(request.num_decoded for request in requests)
    weighted = [(request, request.num_decoded / steps) for request in requests] if steps else []
    return Demand(
        requests=requests,
        prompt=fmean(request.num_prompt for request in requests),
        new=fmean(request.num_new for request in requests),
        attended=fmean(prompt_attention(request.num_new, request.num_cached) for request in requests),
        output=fmean(request.num_output for request in requests),
        decoded=steps / len(requests),
        context=sum(share * (r.num_prompt + (r.num_decoded + 1) / 2) for r, share in weighted),
        context_at_end=sum(share * (r.num_prompt + r.num_output) for r, share in weighted),
        longest=max(request.num_prompt + request.num_output for request in requests),
    )


def _with_hits(rows: Sequence[Arrival], slos: SloConfig) -> tuple[DemandedRequest, ...]:
    seen: set[bytes] = set()
    requests = []
    for row in rows:
        most = (row.num_prompt - 1) // BLOCK_TOKENS  # a prompt computes its last token at least
        blocks = row.block_hashes[:most]
        num_hits = next((number for number, block in enumerate(blocks) if block not in seen), len(blocks))
        seen.update(row.block_hashes)
        requests.append(
            DemandedRequest(row.num_prompt, num_hits * BLOCK_TOKENS, row.num_output, slos.of(row.slo_class))
        )
    return tuple(requests)
