"""A service is struck under load: the same measurement for faults of Ray's processes, of nodes and of the network."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from tests.drills.client import ANSWERED
from tests.drills.processes import DECODE, PREFILL, PROCESS_NAMES, SCHEDULER, AnyService, LiveProcesses
from tests.drills.report import PlaneMeasured
from tests.drills.traffic import Traffic
from tests.real_cluster.service import wait_for

SEEDS_PER_DRILL = 52
"""More than its streams, so that no drill finds the prompts of another one in a cache."""


@dataclass(frozen=True)
class Struck:
    measured: PlaneMeasured
    lost: set[psutil.Process]
    """Replicas that ran before the fault and do not run after it."""
    errors: list[dict[str, Any]]
    """What the service said to those that it refused, and why others did not reach it."""


def struck(
    service: AnyService,
    name: str,
    number: int,
    strike: Callable[[], None],
    num_replicas: Mapping[str, int],
    within_s: float,
    path: str | None = None,
) -> Struck:
    """Strike while streams run, and wait until all replicas run and the Scheduler knows the workers. `number`: of the
    drill. `path`: the only one that the streams may take.
    """
    before = replicas(service)
    traffic = Traffic(lambda: service.host, service.port, SEEDS_PER_DRILL * number, path=path)
    try:
        wait_for(lambda: traffic.outcomes[ANSWERED] > 0, within_s)
        struck_at = time.monotonic()
        strike()
        wait_for(lambda: _is_staffed(service, num_replicas), within_s, interval_s=0.5)
        whole_s = time.monotonic() - struck_at
    finally:
        traffic.stop()
    lost = before - replicas(service)
    silence_s = traffic.longest_silence_s(struck_at)
    measured = PlaneMeasured(name, dict(traffic.outcomes), silence_s, len(lost), whole_s)
    return Struck(measured, lost, traffic.errors)


def replicas(service: AnyService) -> set[psutil.Process]:
    """Equal only to those with the same process ids and the same start."""
    return {process for name in PROCESS_NAMES.values() for process in service.processes(name)}


def _is_staffed(service: AnyService, num_replicas: Mapping[str, int]) -> bool:
    """There may be requests."""
    try:
        workers = LiveProcesses(service).snapshot().by("pool", "baton_workers", deployment=SCHEDULER)
    except httpx.HTTPError:
        return False
    return workers == {pool: num_replicas[pool] for pool in (PREFILL, DECODE)} and all(
        len(service.processes(PROCESS_NAMES[deployment])) == number for deployment, number in num_replicas.items()
    )
