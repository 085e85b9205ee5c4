"""The simulated twin of a running Baton: it gets every request that the service got, from the first one on.

What a Scheduler predicts depends on what it has learned, and so on what it was asked before. So each question to the
twin runs all loads again, at the times at which the service had them. The twin knows of the service only its settings
and what was measured with requests that it gets alone, or that have a worker to themselves.

Close to overload, what becomes of a load follows chance: one request that a prefill worker keeps slows the prompts of
many others. So the twin runs several times with other noise on its steps, and its figures are means.
"""

from collections.abc import Sequence
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from bench.live.goodput import Answer, Slo
from bench.live.mixes import Ask
from cluster.engine.shape import kind_of
from cluster.messages.ids import Path, Pool
from cluster.messages.placement import Slo as RequestSlo
from cluster.messages.reports import REPORT_INTERVAL_S
from cluster.messages.transport import LinkSpeed
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.engine.truth.uneven_steps import Noise
from cluster.simulation.pools.pool_setting import ClusterSetting, PoolSetting, Reporting
from cluster.simulation.run import simulate
from cluster.simulation.traffic.workload import RequestRecord, SimRequest
from cluster.slo import SloConfig
from router.pending_placements import PendingPlacements
from router.prediction.step_model import StepModel
from router.state import RouterState

LINK = LinkSpeed(latency_s=5e-3, bytes_per_s=1e9)
"""Of the simulated handoffs: about what NIXL has between processes of one machine."""
KV_TOKENS = 40_000
"""KV tokens of an engine. The requests here take a tenth of them."""
USUAL_PROMPT_TOKENS = 500
"""Length of a prompt where no answer tells one."""

ENGINE = EngineSetting(
    kv_capacity_tokens=KV_TOKENS,
    max_step_tokens=2048,
    has_short_steps=True,
    by_deadline=True,
    overtakes=True,
    max_decoding=64,
    block_size=32,
)


class Beyond(NamedTuple):
    """What requests take beyond the pace, in seconds."""

    step_s: float = 0.0
    """For each step with one request."""
    decoding_s: float = 0.0
    """For each further request that decodes in it."""
    ttft_s: float = 0.0
    """Until the first token, once. The figures have it, the twin has not."""
    sigma: float = 0.0
    """How much steps vary: the standard deviation of the logarithm of their times."""


class SentLoad(NamedTuple):
    """Requests that the service has had, and what became of them."""

    at_s: float
    """When the load began."""
    asked: Sequence[Ask]
    """The kind of a request is the path that it had to take, or any other word where the Scheduler chose."""
    answers: Sequence[Answer]


class Twin:
    def __init__(self, classes: SloConfig, slo: Slo, step_s: float, token_s: float) -> None:
        """`classes`: of the service; `slo`: what each request asks for; `step_s` and `token_s`: the pace."""
        self.beyond = Beyond()
        self._classes, self._slo = classes, slo
        self._step_s, self._token_s = step_s, token_s
        self._loads: list[SentLoad] = []

    def add(self, load: SentLoad) -> None:
        """The service had this load after all others."""
        self._loads.append(load)

    def runs(self, number: int) -> list[list[list[RequestRecord]]]:
        """What becomes of the requests of each load, in each of so many runs."""
        return [self._run(seed) for seed in range(number)]

    def last(self) -> list[RequestRecord]:
        """What becomes of the requests of the last load in one run."""
        return self._run(0)[-1]

    def _run(self, seed: int) -> list[list[RequestRecord]]:
        records = iter(simulate(self._workload(), self._setting(seed), self._scheduler))
        return [list(islice(records, len(load.asked))) for load in self._loads]

    def _workload(self) -> list[SimRequest]:
        return [
            SimRequest(
                arrival_s=load.at_s - self._loads[0].at_s + ask.at_s,
                num_prompt=num_prompt,
                num_output=ask.max_tokens,
                max_output=ask.max_tokens,
                slo=RequestSlo(self._slo.ttft_s, self._slo.tpot_s),
                asked_path=Path(ask.kind) if ask.kind in set(Path) else None,
            )
            for load in self._loads
            for ask, num_prompt in zip(load.asked, prompt_lengths(load), strict=True)
        ]

    def _setting(self, seed: int) -> ClusterSetting:
        prefill, decode = (
            PoolSetting(
                number=1,
                engine=ENGINE,
                model=self._step_times(),
                kind=kind_of(pool, {}, "paced"),
                noise=Noise(sigma=self.beyond.sigma),
                noise_seed=seed,
            )
            for pool in Pool
        )
        reporting = Reporting(interval_s=REPORT_INTERVAL_S)
        return ClusterSetting(prefill=prefill, decode=decode, kv_bytes_per_token=1000, link=LINK, reporting=reporting)

    def _step_times(self) -> StepModel:
        return StepModel(
            fixed_s=self._step_s + max(0.0, self.beyond.step_s - self.beyond.decoding_s),
            token_s=self._token_s,
            knee_tokens=1,
            beyond_knee_s=0.0,
            attended_s=0.0,
            request_s=self.beyond.decoding_s,
            context_s=0.0,
        )

    def _scheduler(self) -> PendingPlacements:
        return PendingPlacements(RouterState(self._classes))


def prompt_lengths(load: SentLoad) -> list[int]:
    """Tokens of each prompt. Only answers tell them: a request without one has as many for each character as the
    prompts of the others.
    """
    sizes = [sum(map(len, ask.messages)) for ask in load.asked]
    pairs = zip(load.answers, sizes, strict=True)
    per_character = [answer.prompt_tokens / size for answer, size in pairs if answer.prompt_tokens]
    if not per_character:
        return [USUAL_PROMPT_TOKENS] * len(sizes)
    usual = fmean(per_character)
    return [
        answer.prompt_tokens or max(1, round(usual * size)) for answer, size in zip(load.answers, sizes, strict=True)
    ]
