"""What placement knows of a request: its needs, what the workers cache of its prompt, and the requests to come."""

from math import inf
from typing import Final, final

from cluster.messages.ids import WorkerId
from cluster.messages.placement import PlacementRequest, Slo
from router.load.prompt_demand import Demand
from router.load.worker_state import WorkerState
from router.prediction.output_lengths import LengthHistogram
from router.prefixes.narrowing import Hit

RESERVED_OUTPUT_SHARE: Final = 0.5
"""Share of the expected output that memory is reserved for, since other requests end while the request grows. Higher
leaves KV memory unused; lower has engines preempt requests.
"""
HOST_BYTES_PER_S: Final = 2e10
"""Speed from DRAM to a GPU over PCIe, in bytes per second. Higher prefers workers that have KV blocks in DRAM; lower
has prompts computed again.
"""
SHORT: Final = 0.2
USUAL: Final = 0.5
LONG: Final = 0.8
"""Quantiles of the output lengths for which a TPOT is predicted. Further apart counts rare lengths as usual ones;
closer together misses the risk of short and long answers.
"""


@final
class Later:
    """Requests of one class that are expected after the request."""

    __slots__ = ("is_higher", "per_s", "slo_tpot_s", "slo_ttft_s", "weighed_per_s")

    def __init__(self, per_s: float, weight: float, slo: Slo) -> None:
        """`weight`: of such a request as a victim; `slo`: the usual one of the class."""
        self.per_s = per_s
        """Requests per second."""
        self.weighed_per_s = weight * per_s
        self.slo_ttft_s: float = slo.ttft_s
        self.slo_tpot_s: float = slo.tpot_s
        self.is_higher = weight > 1.0
        """The class is served before that of the request."""


@final
class Others:
    """The requests that are yet to come, which a placement affects as well as running requests."""

    __slots__ = (
        "arrivals_per_s",
        "decode_use",
        "demand",
        "kv_price",
        "later",
        "num_workers",
        "prompt_use",
        "time_price",
        "usual_prompt_s",
    )

    def __init__(
        self,
        later: list[Later],
        num_workers: int,
        prompt_use: float,
        decode_use: float,
        demand: Demand,
        kv_price: float,
        time_price: float,
        usual_prompt_s: float,
    ) -> None:
        self.later = later
        self.arrivals_per_s = sum([several.per_s for several in later if not several.is_higher])
        """Requests per second that are expected after the request, but for those of a higher class."""
        self.num_workers = num_workers
        self.prompt_use = prompt_use
        """Share of the workers' time that prompts took lately."""
        self.decode_use = decode_use
        """Share of the workers that have requests."""
        self.demand = demand
        """Prompts that were placed lately, by how soon they are due."""
        per_s = sum([several.per_s for several in later])
        usual_weight = sum([several.weighed_per_s for several in later]) / per_s if per_s else 1.0
        self.kv_price = usual_weight * kv_price
        """Requests that find no room for each KV token that is taken, by their weight as victims."""
        self.time_price = usual_weight * time_price
        """Requests that find no time for each second of a worker that a prompt takes, by their weight as victims."""
        self.usual_prompt_s = usual_prompt_s
        """Seconds that the prompt takes which workers compute at a random moment."""


@final
class PlacementInput:
    """What placement knows of a request. Fields of the request and of its SLO that are read often are copied."""

    __slots__ = (
        "age_s",
        "due_at",
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
        """What each worker caches of the prompt."""
        self.lengths = lengths
        most = inf if request.max_output_tokens is None else float(request.max_output_tokens)
        done = float(request.num_output_tokens)
        self.outputs = (
            max(1.0, min(lengths.quantile(SHORT), most) - done),
            max(1.0, min(lengths.quantile(USUAL), most) - done),
            max(1.0, min(lengths.quantile(LONG), most) - done),
        )
        """Tokens that each sequence is expected to generate yet, at the quantiles SHORT, USUAL and LONG."""
        self.kv_tokens = self.num_prompt + int(self.outputs[1] * RESERVED_OUTPUT_SHARE * self.num_sequences)
        """KV tokens that are reserved for the request where it decodes."""
        self.age_s = age_s
        """Seconds since the request reached the ingress."""
        is_new = request.num_output_tokens == 0 or request.is_paused
        self.due_at: float = now + self.slo_ttft_s - age_s if is_new else now
        """When the first token is due. A client that has tokens waits for the next one, unless its request is paused:
        then the request comes after those that it has made room for.
        """
        self.others = others
        self.now = now

    def hit(self, worker: WorkerState) -> int:
        """Prompt tokens that the worker need not compute. The last prompt token is always computed."""
        found = self.hits.get(worker.worker)
        if found is None:
            return 0
        return min(found.num_blocks * worker.block_size, self.num_prompt - 1)

    def share_held(self, worker: WorkerState) -> float:
        """Share of the prompt that the worker need not compute."""
        return self.hit(worker) / max(1, self.num_prompt)

    def load_s(self, worker: WorkerState) -> float:
        """Time to load the blocks that the worker has in DRAM or on disk, in seconds."""
        found = self.hits.get(worker.worker)
        if found is None or found.num_blocks <= found.num_gpu_blocks:
            return 0.0
        num_tokens = (found.num_blocks - found.num_gpu_blocks) * worker.block_size
        return num_tokens * worker.kv_bytes_per_token / HOST_BYTES_PER_S


def holder_of(placement_input: PlacementInput, workers: list[WorkerState]) -> WorkerState | None:
    """The worker that holds most of the prompt. None if no worker holds a part of it."""
    hits = placement_input.hits
    most, holder, last = 0, None, None
    if hits:
        for worker in workers:
            found = hits.get(worker.worker)
            if found is None or found is last:  # workers that hold equally much mostly share one Hit
                continue
            last = found
            if (hit := placement_input.hit(worker)) > most:
                most, holder = hit, worker
    return holder
