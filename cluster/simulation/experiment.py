"""An experiment: a workload, a cluster and objectives, under which any policy, split and rate can be run and compared.

The same experiment, policy, split, rate and seed give the same records. Workers are alike; a policy without a prefill
pool has all of them prefill and decode.
"""

from collections.abc import Callable, Sequence
from math import floor, inf

import msgspec

from cluster.messages.ids import Pool
from cluster.messages.transport import LinkSpeed
from cluster.simulation.baselines import BASELINES
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.pools.pool_setting import ClusterSetting, Fault, PoolSetting, Reporting
from cluster.simulation.results.summary import WARM_UP
from cluster.simulation.run import simulate
from cluster.simulation.traffic.slos import slo_of
from cluster.simulation.traffic.workload import Arrival, RequestRecord, at_rate, rate_per_s
from cluster.slo import SloConfig
from router.pending_placements import PendingPlacements
from router.prediction.hardware import DEVICES, LINKS, MODELS
from router.prediction.roofline import kv_capacity_tokens, step_model
from router.prediction.step_model import StepModel
from router.state import RouterState

HOST_BYTES_PER_S = 40e9
"""From host memory to one device, as PCIe 5 gives it."""
REPORT_INTERVAL_S = 0.25
"""Of workers in production."""
DEFAULT_LINK = LinkSpeed(latency_s=0.5e-3, bytes_per_s=90e9)
"""Two 400 Gb cards, one for each device of a worker."""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers are. Checked when it is built."""

    model: str = "qwen3-32b"
    """Of router/prediction/hardware.py."""
    device: str = "h100"
    tensor_parallel: int = 2
    """Devices per worker."""
    num_workers: int = 8
    link: LinkSpeed = DEFAULT_LINK
    """Into and out of a worker."""
    host_tokens: int = 0
    """That each worker caches in host memory."""
    prefill_step_tokens: int = 2048
    decode_step_tokens: int = 512
    """Most tokens of a step: fewer disturb decodes less and make weights be read more often."""
    max_decoding: int = 256
    reporting: Reporting = Reporting(interval_s=REPORT_INTERVAL_S)
    faults: tuple[Fault, ...] = ()
    max_tries: int = 1
    """Times that a client comes, as told by Retry-After."""

    def __post_init__(self) -> None:
        for kind, name, known in (("model", self.model, MODELS), ("device", self.device, DEVICES)):
            if name not in known:
                raise ValueError(f"{name!r} is no {kind} that we have figures for: {', '.join(known)}")
        if self.kv_capacity_tokens < self.prefill_step_tokens:
            raise ValueError(f"{self.model} leaves no memory for KV on {self.tensor_parallel} {self.device}")

    @property
    def step_model(self) -> StepModel:
        return step_model(MODELS[self.model], DEVICES[self.device], self.tensor_parallel)

    @property
    def kv_capacity_tokens(self) -> int:
        return kv_capacity_tokens(MODELS[self.model], DEVICES[self.device], self.tensor_parallel)

    @property
    def isolated_prefill_s(self) -> Callable[[int], float]:
        """What a prompt takes alone on an idle prefill worker, none of it cached."""
        model, most = self.step_model, self.prefill_step_tokens
        return lambda num_prompt: model.prefill_s(num_prompt, 0, most)

    def split(self, num_prefill: int) -> ClusterSetting:
        """With so many prefill workers."""
        return ClusterSetting(
            prefill=self._pool(Pool.PREFILL, num_prefill, self.prefill_step_tokens),
            decode=self._pool(Pool.DECODE, self.num_workers - num_prefill, self.decode_step_tokens),
            kv_bytes_per_token=MODELS[self.model].kv_bytes_per_token,
            link=self.link,
            reporting=self.reporting,
            faults=self.faults,
            max_tries=self.max_tries,
        )

    def _pool(self, pool: Pool, number: int, max_step_tokens: int) -> PoolSetting:
        kv_bytes_per_token = MODELS[self.model].kv_bytes_per_token
        engine = EngineSetting(
            kv_capacity_tokens=self.kv_capacity_tokens,
            max_step_tokens=max_step_tokens,
            max_decoding=self.max_decoding,
            host_tokens=self.host_tokens,
            host_tokens_per_s=self.tensor_parallel * HOST_BYTES_PER_S / kv_bytes_per_token,
        )
        kind = f"{self.model}|{self.device}|tp{self.tensor_parallel}|{pool}"
        return PoolSetting(number=number, engine=engine, model=self.step_model, kind=kind)


class TargetMissed(Exception):
    """So many requests have missed their SLO that the target cannot be attained any more."""


class Experiment:
    """A workload on a cluster."""

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
        """All requests at so many per second on average.

        Raises:
            OutOfReach: the target attainment is.
        """
        workload = at_rate(self._rows, rate / self.own_rate_per_s, slo_of(self._slos, self.cluster.isolated_prefill_s))
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
                if num_misses == most_misses + 1:  # once: the run is over, but some requests may yet end
                    raise TargetMissed

        baseline = BASELINES[policy]

        def make_desk() -> PendingPlacements:
            state = RouterState(self._slos, baseline.make(seed), admits_all=not baseline.has_admission)
            return PendingPlacements(state)

        setting = self.cluster.split(num_prefill if baseline.has_prefill_pool else 0)
        return simulate(workload, setting, make_desk, watch)

    def split_name(self, policy: str, num_prefill: int) -> str:
        if not BASELINES[policy].has_prefill_pool:
            return f"{self.cluster.num_workers}"
        return f"{num_prefill}P{self.cluster.num_workers - num_prefill}D"


def parse_link(text: str) -> LinkSpeed:
    """A name of the catalogue, or GB/s.

    Raises:
        ValueError: neither.
    """
    if link := LINKS.get(text):
        return link
    try:
        gb_per_s = float(text)
    except ValueError:
        gb_per_s = 0.0
    if gb_per_s <= 0:
        raise ValueError(f"{text!r} is no link: give GB/s or {', '.join(LINKS)}")
    return LinkSpeed(latency_s=DEFAULT_LINK.latency_s, bytes_per_s=1e9 * gb_per_s)
