"""An experiment: a workload, a cluster and objectives, under which any policy, split and rate can be run and compared.

The same experiment, policy, split, rate and seed give the same records. All workers have the same hardware. A policy
without a prefill pool uses all workers as decode workers, which compute prompts too.
"""

from collections.abc import Callable, Sequence
from math import floor, inf

import msgspec

from cluster.messages.ids import Pool
from cluster.messages.reports import REPORT_INTERVAL_S
from cluster.messages.transport import LinkSpeed
from cluster.simulation.baselines import BASELINES
from cluster.simulation.engine.engine_setting import Engines, EngineSetting
from cluster.simulation.engine.truth.truth import Truth
from cluster.simulation.pools.pool_setting import ClusterSetting, Fault, PoolSetting, Reporting
from cluster.simulation.results.summary import WARM_UP
from cluster.simulation.run import simulate
from cluster.simulation.traffic.slos import slo_of
from cluster.simulation.traffic.workload import Arrival, RequestRecord, SimRequest, at_rate, rate_per_s
from cluster.slo import SloConfig
from router.pending_placements import PendingPlacements
from router.prediction.hardware import DEVICES, LINKS, MODELS
from router.prediction.roofline import ModelShape, kv_capacity_tokens, step_model
from router.prediction.step_model import StepModel
from router.state import RouterState

PCIE_BYTES_PER_S = 40e9
"""Bandwidth from DRAM to one simulated device, in bytes per second, as PCIe 5 gives it. Lower makes hits in the DRAM
tier slower than on hardware; higher makes them faster. Placement counts with HOST_BYTES_PER_S of
router/placement/placement_input.py, on all hardware.
"""
PROMPTS_PER_STEP = 4
"""Long prompts that share a step of engines with `Engines.PARTIAL`. More let short prompts pass sooner; fewer finish
long prompts sooner.
"""
DEFAULT_LINK = LinkSpeed(latency_s=0.5e-3, bytes_per_s=90e9)
"""Speed of a worker's link: two 400 Gb/s network cards, one for each of the worker's two devices."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware and the settings of all workers. The constructor checks the names, and that the model fits."""

    model: str = "qwen3-32b"
    """Name of a model in router/prediction/hardware.py, or any name if `shape` is given."""
    shape: ModelShape | None = None
    """Figures of a model that is not in router/prediction/hardware.py. None takes the figures of the name."""
    device: str = "h100"
    """Name of a device in router/prediction/hardware.py."""
    tensor_parallel: int = 2
    """Devices per worker."""
    num_workers: int = 8
    """Prefill and decode workers together."""
    link: LinkSpeed = DEFAULT_LINK
    """Speed at which handoffs enter or leave a worker."""
    host_tokens: int = 0
    """Size of each worker's DRAM tier, in tokens. 0 is no DRAM tier."""
    prefill_step_tokens: int = 2048
    """Most tokens of a step on a prefill worker, and on all workers with Baton's step policy. Lower reads the weights
    more often for one prompt; higher delays the requests that decode there more by prompts.
    """
    decode_step_tokens: int = 512
    """Most tokens of a step on a decode worker without Baton's step policy. Lower reads the weights more often for one
    prompt; higher delays the decoding requests more by prompts.
    """
    max_decoding: int = 256
    """Most requests that prefill or decode on one worker at the same time."""
    reporting: Reporting = Reporting(interval_s=REPORT_INTERVAL_S)
    faults: tuple[Fault, ...] = ()
    is_resumable: bool = True
    """Requests can be resumed. Only then the first token of the prefill worker goes to the client."""
    max_tries: int = 1
    """Most times that a client sends one request: the first time, and again after each Retry-After."""
    truth: Truth = Truth()
    """What the engines' steps really take. Predictions and SLOs start from the roofline whatever it is."""

    def __post_init__(self) -> None:
        models = MODELS if self.shape is None else {self.model: self.shape}
        for kind, name, known in (("model", self.model, models), ("device", self.device, DEVICES)):
            if name not in known:
                raise ValueError(f"unknown {kind} {name!r}; the known ones are {', '.join(known)}")
        if self.kv_capacity_tokens < self.prefill_step_tokens:
            raise ValueError(f"{self.model} leaves no memory for KV blocks on {self.tensor_parallel} {self.device}")
        if self.truth.stragglers.number > self.num_workers:
            raise ValueError(f"{self.truth.stragglers.number} stragglers are more than the {self.num_workers} workers")

    @property
    def model_shape(self) -> ModelShape:
        return self.shape or MODELS[self.model]

    @property
    def step_model(self) -> StepModel:
        return step_model(self.model_shape, DEVICES[self.device], self.tensor_parallel)

    @property
    def kv_capacity_tokens(self) -> int:
        return kv_capacity_tokens(self.model_shape, DEVICES[self.device], self.tensor_parallel)

    @property
    def isolated_prefill_s(self) -> Callable[[int], float]:
        """Seconds that a prompt takes alone on an idle prefill worker, by its tokens, if none of them is cached."""
        model, most = self.step_model, self.prefill_step_tokens
        return lambda num_prompt: model.prefill_s(num_prompt, 0, most)

    def split(self, num_prefill: int, engines: Engines = Engines.BATON) -> ClusterSetting:
        """The setting with `num_prefill` prefill workers. All further workers are decode workers."""
        num_decode = self.num_workers - num_prefill
        slow_prefill, slow_decode = self.truth.stragglers.split(num_prefill, num_decode)
        return ClusterSetting(
            prefill=self._pool(Pool.PREFILL, num_prefill, slow_prefill, engines),
            decode=self._pool(Pool.DECODE, num_decode, slow_decode, engines),
            kv_bytes_per_token=self.model_shape.kv_bytes_per_token,
            link=self.link,
            reporting=self.reporting,
            faults=self.faults,
            is_resumable=self.is_resumable,
            max_tries=self.max_tries,
        )

    def _pool(self, pool: Pool, number: int, num_stragglers: int, engines: Engines) -> PoolSetting:
        kv_bytes_per_token = self.model_shape.kv_bytes_per_token
        max_step_tokens, rules = self.prefill_step_tokens, engines.value
        if pool is Pool.DECODE and not rules.has_short_steps:
            max_step_tokens = self.decode_step_tokens
        engine = EngineSetting(
            kv_capacity_tokens=self.kv_capacity_tokens,
            max_step_tokens=max_step_tokens,
            has_short_steps=rules.has_short_steps,
            by_deadline=rules.by_deadline,
            overtakes=rules.overtakes,
            most_of_prompt=max_step_tokens // PROMPTS_PER_STEP if rules.divides_steps else None,
            max_decoding=self.max_decoding,
            host_tokens=self.host_tokens,
            host_tokens_per_s=self.tensor_parallel * PCIE_BYTES_PER_S / kv_bytes_per_token,
        )
        kind = f"{self.model}|{self.device}|tp{self.tensor_parallel}|{pool}"
        return PoolSetting(
            number=number,
            engine=engine,
            model=self.truth.step_times(self.step_model),
            kind=kind,
            noise=self.truth.noise,
            noise_seed=self.truth.seed,
            num_stragglers=num_stragglers,
            straggler_factor=self.truth.stragglers.factor,
        )


class TargetMissed(Exception):
    """More requests have missed their SLO than the target attainment allows."""


class Experiment:
    """A workload on a cluster with objectives."""

    def __init__(self, rows: Sequence[Arrival], cluster: Cluster, slos: SloConfig) -> None:
        self.cluster = cluster
        self.own_rate_per_s = rate_per_s(rows)
        self.num_requests = len(rows)
        self._rows = rows
        self._slos = slos

    def run(
        self,
        policy: str,
        num_prefill: int,
        rate: float,
        seed: int = 0,
        *,
        target: float | None = None,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> list[RequestRecord]:
        """Simulate all requests, with arrivals scaled to `rate` requests per second on average.

        `seed` seeds a policy that chooses at random. `on_record` gets each record when its request has ended.

        Raises:
            TargetMissed: more requests have missed their SLO than the attainment `target` allows.
        """
        workload = self.workload(rate)
        num_left_out = round(WARM_UP * len(workload))
        counted_from_s = workload[num_left_out].arrival_s
        most_misses = floor((1 - target) * (len(workload) - num_left_out) + 1e-9) if target is not None else inf
        num_misses = 0

        def watch(record: RequestRecord) -> None:
            nonlocal num_misses
            if on_record is not None:
                on_record(record)
            if record.arrival_s >= counted_from_s and not record.is_good:
                num_misses += 1
                # Raise once only: further requests may end while the loop cancels what is left of the run.
                if num_misses == most_misses + 1:
                    raise TargetMissed

        baseline = BASELINES[policy]

        def make_scheduler() -> PendingPlacements:
            state = RouterState(
                self._slos,
                baseline.make(seed),
                admits_all=not baseline.has_admission,
                preempts=baseline.preempts,
            )
            return PendingPlacements(state)

        setting = self.cluster.split(num_prefill if baseline.has_prefill_pool else 0, baseline.engines)
        return simulate(workload, setting, make_scheduler, watch)

    def workload(self, rate: float) -> list[SimRequest]:
        """All requests, with arrivals scaled to `rate` requests per second on average."""
        return at_rate(self._rows, rate / self.own_rate_per_s, slo_of(self._slos, self.cluster.isolated_prefill_s))

    def split_name(self, policy: str, num_prefill: int) -> str:
        if not BASELINES[policy].has_prefill_pool:
            return f"{self.cluster.num_workers}"
        return f"{num_prefill}P{self.cluster.num_workers - num_prefill}D"


def parse_link(text: str) -> LinkSpeed:
    """Parse the name of a link in router/prediction/hardware.py, or a bandwidth in GB/s.

    Raises:
        ValueError: the text is neither a known name nor a positive number.
    """
    if link := LINKS.get(text):
        return link
    try:
        gb_per_s = float(text)
    except ValueError:
        gb_per_s = 0.0
    if not 0 < gb_per_s < float("inf"):
        raise ValueError(f"{text!r} is not a link: give GB/s or one of {', '.join(LINKS)}")
    return LinkSpeed(latency_s=DEFAULT_LINK.latency_s, bytes_per_s=1e9 * gb_per_s)
