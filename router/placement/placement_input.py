"""A request as placement sees it: what it needs, what the workers have of it, and who will come after it."""

from math import inf
from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.placement import PlacementRequest, Slo
from router.load.worker_state import WorkerState
from router.prediction.output_lengths import LengthHistogram
from router.prefixes.block_table import Hit

RESERVED_OUTPUT_SHARE: Final = 0.5
"""Of the expected output, that a request is taken to need memory for: others end meanwhile."""
HOST_BYTES_PER_S: Final = 2e10
"""From DRAM to a GPU over PCIe."""
SHORT: Final = 0.2
USUAL: Final = 0.5
LONG: Final = 0.8


@final
class Higher:
    """Requests of a higher class that are expected after one."""

    __slots__ = ("slo_tpot_s", "slo_ttft_s", "weighed_per_s")

    def __init__(self, weighed_per_s: float, slo: Slo) -> None:
        self.weighed_per_s = weighed_per_s
        """Each counts as many as it would as a victim."""
        self.slo_ttft_s: float = slo.ttft_s
        self.slo_tpot_s: float = slo.tpot_s


@final
class Others:
    """Whom a placement affects beside those that run: requests that are yet to come."""

    __slots__ = ("arrivals_per_s", "decode_use", "higher", "num_decodes", "num_prefills", "prefill_use")

    def __init__(
        self,
        arrivals_per_s: float,
        higher: list[Higher],
        num_prefills: int,
        num_decodes: int,
        prefill_use: float,
        decode_use: float,
    ) -> None:
        self.arrivals_per_s = arrivals_per_s
        """Requests that are expected after it, but for those of a higher class."""
        self.higher = higher
        self.num_prefills = num_prefills
        self.num_decodes = num_decodes
        self.prefill_use = prefill_use
        """Share of the prefill workers' time that lately went to prompts."""
        self.decode_use = decode_use
        """Share of the decode workers that have something to do."""


@final
class PlacementInput:
    """A request as placement sees it. What is read often of the request and of its SLO is copied out of them."""

    __slots__ = (
        "age_s",
        "has_early_token",
        "hits",
        "kv_tokens",
        "lengths",
        "now",
        "num_prompt",
        "num_sequences",
        "others",
        "outputs",
        "rank",
        "request",
        "slo",
        "slo_tpot_s",
        "slo_ttft_s",
    )

    def __init__(
        self,
        request: PlacementRequest,
        slo: Slo,
        hits: dict[WorkerId, Hit],
        lengths: LengthHistogram,
        age_s: float,
        others: Others,
        now: float,
    ) -> None:
        self.request = request
        self.num_prompt: int = request.num_prompt_tokens
        self.num_sequences: int = request.num_sequences
        self.has_early_token: bool = request.has_early_token
        self.rank: int = request.slo_class.rank
        self.slo = slo
        self.slo_ttft_s: float = slo.ttft_s
        self.slo_tpot_s: float = slo.tpot_s
        self.hits = hits
        """What the workers have cached of the prompt."""
        self.lengths = lengths
        most = inf if request.max_output_tokens is None else float(request.max_output_tokens)
        done = float(request.num_output_tokens)
        self.outputs = (
            max(1.0, min(lengths.quantile(SHORT), most) - done),
            max(1.0, min(lengths.quantile(USUAL), most) - done),
            max(1.0, min(lengths.quantile(LONG), most) - done),
        )
        """How many tokens it may still generate, at the quantiles SHORT, USUAL and LONG."""
        self.kv_tokens = self.num_prompt + int(self.outputs[1] * RESERVED_OUTPUT_SHARE * self.num_sequences)
        """That it is taken to need where it decodes."""
        self.age_s = age_s
        """Since it arrived at the ingress."""
        self.others = others
        self.now = now

    def hit(self, worker: WorkerState) -> int:
        """Tokens of the prompt that the worker need not compute; the last one always is."""
        found = self.hits.get(worker.worker)
        if found is None:
            return 0
        return min(found.num_blocks * worker.block_size, self.num_prompt - 1)

    def load_s(self, worker: WorkerState) -> float:
        """To bring back what the worker has outside of its engine."""
        found = self.hits.get(worker.worker)
        if found is None or found.num_blocks <= found.num_gpu_blocks:
            return 0.0
        num_tokens = (found.num_blocks - found.num_gpu_blocks) * worker.block_size
        return num_tokens * worker.kv_bytes_per_token / HOST_BYTES_PER_S
