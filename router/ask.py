"""A request as placement sees it: what it needs, what the workers have of it, and who will come after it."""

from math import inf
from typing import NamedTuple

from cluster.types import PlacementRequest, Slo, WorkerId
from router.block_table import Hit
from router.fleet import WorkerState
from router.output_lengths import LengthHistogram

RESERVED_OUTPUT_SHARE = 0.5
"""Of the expected output, that a request is taken to need memory for: others end meanwhile."""
HOST_BYTES_PER_S = 2e10
"""From DRAM to a GPU over PCIe."""
OUTPUT_QUANTILES = (0.2, 0.5, 0.8)


class Higher(NamedTuple):
    """Requests of a higher class that are expected after one."""

    weighed_per_s: float
    """Each counts as many as it would as a victim."""
    slo: Slo


class Others(NamedTuple):
    """Whom a placement affects beside those that run: requests that are yet to come."""

    arrivals_per_s: float
    """Requests that are expected after it, but for those of a higher class."""
    higher: tuple[Higher, ...]
    num_prefills: int
    num_decodes: int
    prefill_use: float
    """Share of the prefill workers' time that lately went to prompts."""
    decode_use: float
    """Share of the decode workers that have something to do."""


class Ask(NamedTuple):
    """A request as placement sees it."""

    request: PlacementRequest
    num_prompt: int
    slo: Slo
    hits: dict[WorkerId, Hit]
    """What the workers have cached of the prompt."""
    lengths: LengthHistogram
    outputs: tuple[float, float, float]
    """How many tokens it may still generate, at OUTPUT_QUANTILES."""
    kv_tokens: int
    """That it is taken to need where it decodes."""
    age_s: float
    """Since it arrived at the ingress."""
    others: Others
    now: float

    def hit(self, worker: WorkerState) -> int:
        """Tokens of the prompt that the worker need not compute; the last one always is."""
        found = self.hits.get(worker.worker)
        if found is None:
            return 0
        return min(found.num_blocks * worker.shape.block_size, self.num_prompt - 1)

    def load_s(self, worker: WorkerState) -> float:
        """To bring back what the worker has outside of its engine."""
        found = self.hits.get(worker.worker)
        if found is None or found.num_blocks <= found.num_gpu_blocks:
            return 0.0
        shape = worker.shape
        num_tokens = (found.num_blocks - found.num_gpu_blocks) * shape.block_size
        return num_tokens * shape.kv_bytes_per_token / HOST_BYTES_PER_S


def ask_of(
    request: PlacementRequest,
    slo: Slo,
    hits: dict[WorkerId, Hit],
    lengths: LengthHistogram,
    age_s: float,
    others: Others,
    now: float,
) -> Ask:
    most = inf if request.max_output_tokens is None else float(request.max_output_tokens)
    done, num_prompt = request.num_output_tokens, request.num_prompt_tokens
    short, usual, long = [max(1.0, min(lengths.quantile(q), most) - done) for q in OUTPUT_QUANTILES]
    kv_tokens = num_prompt + int(usual * RESERVED_OUTPUT_SHARE * request.num_sequences)
    return Ask(request, num_prompt, slo, hits, lengths, (short, usual, long), kv_tokens, age_s, others, now)
