"""What an ingress tells the Scheduler of the quality of workers' answers (docs/quality.md)."""

import msgspec

from cluster.messages.ids import WorkerId


class WorkerQuarantine(msgspec.Struct, frozen=True, array_like=True):
    """All workers that are to get no requests, by the ingress replica that probes. Told again at intervals."""

    workers: dict[WorkerId, str]
    """Why, for each worker, in words for operators."""
