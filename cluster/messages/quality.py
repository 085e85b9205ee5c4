"""The answers to probes, and what an ingress tells the Scheduler of the quality of workers (docs/quality.md)."""

import msgspec

from cluster.messages.generation import TokenLogprob
from cluster.messages.ids import WorkerId


class AnswerStep(msgspec.Struct, frozen=True, array_like=True):
    """One token of a greedy answer."""

    token_id: int
    top: list[TokenLogprob]
    """The most likely tokens of the step."""


Answer = list[AnswerStep]


class WorkerQuarantine(msgspec.Struct, frozen=True, array_like=True):
    """All workers that are to get no requests, by the ingress replica that probes. Told again at intervals."""

    workers: dict[WorkerId, str]
    """Why, for each worker, in words for operators."""
    lease: int = 0
    """Number of the lease of the replica that probes. A replica with a lower number has lost its lease."""
