"""The highest rate of a policy in a cell, over all splits: what one process of the benchmark does at a time."""

from typing import Any

import msgspec

from bench.matrix.cells import cluster_of
from bench.matrix.trials import TrialFile, TrialKey
from cluster.simulation.baselines import BASELINES
from cluster.simulation.rate_search import best_split
from cluster.simulation.results.summary import RunSummary


class Job(msgspec.Struct, frozen=True, kw_only=True):
    cell: str
    policy: str
    seed: int
    splits: tuple[int, ...]
    """Numbers of prefill workers to choose from, if the policy has any."""
    num_requests: int
    step_tokens: int
    """Tokens that a step of a decode worker computes at most."""
    target: float
    guess_per_s: float

    @property
    def weight(self) -> float:
        """How long a job takes, relative to other jobs."""
        baseline = BASELINES[self.policy]
        return (1 + len(self.splits) / 3 if baseline.has_prefill_pool else 1.0) * (4 if baseline.has_admission else 1)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    cell: str
    policy: str
    seed: int
    num_prefill: int
    rate: float
    """0: the target is out of reach at any rate."""
    summary: RunSummary | None
    """Figures of the run at that rate."""
    took_s: float


def find(job: Job, *trial_file: Any) -> Result:
    trials = TrialFile(*trial_file)
    took_s = 0.0

    def key(num_prefill: int, rate: float) -> TrialKey:
        return TrialKey(
            cell=job.cell,
            policy=job.policy,
            num_prefill=num_prefill,
            rate=rate,
            seed=job.seed,
            num_requests=job.num_requests,
            target=job.target,
            cluster=cluster_of(job.cell, job.step_tokens),
        )

    def attainment(num_prefill: int, rate: float) -> float | None:
        nonlocal took_s
        trial = trials.get(key(num_prefill, rate))
        took_s += trial.took_s
        return trial.summary.attainment if trial.summary else None

    splits = job.splits if BASELINES[job.policy].has_prefill_pool else (0,)
    best = best_split(lambda split: lambda rate: attainment(split, rate), splits, job.target, job.guess_per_s)
    rate = best.found.rate
    return Result(
        cell=job.cell,
        policy=job.policy,
        seed=job.seed,
        num_prefill=best.num_prefill,
        rate=rate,
        summary=trials.get(key(best.num_prefill, rate)).summary if rate else None,
        took_s=took_s,
    )
