"""The highest rate of a policy in a cell, at its best setting: what one process of the benchmark does at a time.

The settings of the policies of others are searched: the most tokens of a step where prompts are computed beside
decodes, and the split of the workers for a policy with a prefill pool. Ours has one split for all cells.
"""

from typing import Any, NamedTuple

import msgspec

from bench.matrix.cells import ROOFLINE, cluster_of
from bench.matrix.trials import TrialFile, TrialKey
from cluster.simulation.baselines import BASELINES
from cluster.simulation.engine.truth.truth import Truth
from cluster.simulation.rate_search import best_of
from cluster.simulation.results.summary import RunSummary

OURS = "goodput"
"""Our policy, and the beginning of the names of our policy without a part of it."""
OUR_SPLIT = 3
"""Prefill workers of eight in all cells. Searching it for each cell would tune our policy to the cell."""


class Setting(NamedTuple):
    num_prefill: int
    step_tokens: int
    """Tokens that a step of a decode worker computes at most."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    cell: str
    policy: str
    seed: int
    splits: tuple[int, ...]
    """Numbers of prefill workers to choose from, if the policy has any."""
    num_requests: int
    step_tokens: tuple[int, ...]
    """Tokens that a step of a decode worker computes at most, to choose from."""
    target: float
    guess_per_s: float
    truth: Truth = ROOFLINE
    """What the engines' steps really take. The noise has the seed of the job."""

    @property
    def weight(self) -> float:
        """How long a job takes, relative to other jobs."""
        baseline = BASELINES[self.policy]
        return (1 + len(self.settings) / 3) * (4 if baseline.has_admission else 1)

    @property
    def settings(self) -> list[Setting]:
        """All settings to choose from, likely ones first."""
        middle = self.splits[len(self.splits) // 2]
        splits = sorted(self.splits, key=lambda split: abs(split - middle))
        baseline = BASELINES[self.policy]
        if not baseline.has_prefill_pool:
            splits = [0]
        elif self.policy.startswith(OURS):
            splits = [OUR_SPLIT]
        steps = self.step_tokens if baseline.has_step_size else self.step_tokens[:1]
        return [Setting(split, step_tokens) for step_tokens in steps for split in splits]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    cell: str
    policy: str
    seed: int
    num_requests: int
    num_prefill: int
    step_tokens: int
    rate: float
    """0: the target is out of reach at any rate."""
    summary: RunSummary | None
    """Figures of the run at that rate."""
    took_s: float

    @property
    def tokens(self) -> float:
        """Tokens within SLO at that rate, per second, as a multiple of the mean tokens of a request."""
        return self.rate * self.summary.token_attainment if self.summary else 0.0


def find(job: Job, *trial_file: Any) -> Result:
    trials = TrialFile(*trial_file)
    truth = msgspec.structs.replace(job.truth, seed=job.seed)
    took_s = 0.0

    def key(setting: Setting, rate: float) -> TrialKey:
        return TrialKey(
            cell=job.cell,
            policy=job.policy,
            num_prefill=setting.num_prefill,
            rate=rate,
            seed=job.seed,
            num_requests=job.num_requests,
            target=job.target,
            cluster=cluster_of(job.cell, setting.step_tokens, truth),
        )

    def attainment(setting: Setting, rate: float) -> float | None:
        nonlocal took_s
        trial = trials.get(key(setting, rate))
        took_s += trial.took_s
        return trial.summary.attainment if trial.summary else None

    best = best_of(lambda setting: lambda rate: attainment(setting, rate), job.settings, job.target, job.guess_per_s)
    rate = best.found.rate
    return Result(
        cell=job.cell,
        policy=job.policy,
        seed=job.seed,
        num_requests=job.num_requests,
        num_prefill=best.setting.num_prefill,
        step_tokens=best.setting.step_tokens,
        rate=rate,
        summary=trials.get(key(best.setting, rate)).summary if rate else None,
        took_s=took_s,
    )
