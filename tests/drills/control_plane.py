"""What can be struck on two nodes, as data: who is killed or stopped, which replicas may be replaced, and how long the
service may take until it is whole again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import psutil

from tests.drills.two_nodes import RAYLET, TwoNodes
from tests.real_cluster.service import DECODE_PROCESS, PREFILL_PROCESS, SCHEDULER_PROCESS, wait_for

AWAY_S = 10.0
"""How long a GCS that was killed stays away, and a controller hangs."""
SHORT_PAUSE_S, LONG_PAUSE_S = 1.0, 5.0
"""How long the Scheduler stands still: less, and more, than an ingress waits for it before it places by itself."""
ENGINES_BACK_WITHIN_S = 120.0
NOTICED_WITHIN_S = 60.0


def _no_replica(service: TwoNodes) -> set[psutil.Process]:
    return set()


def _decodes_of_other(service: TwoNodes) -> set[psutil.Process]:
    on_node = service.other.processes()
    return {process for process in service.processes(DECODE_PROCESS) if process in on_node}


def _all_engines(service: TwoNodes) -> set[psutil.Process]:
    return {process for name in (PREFILL_PROCESS, DECODE_PROCESS) for process in service.processes(name)}


@dataclass(frozen=True)
class PlaneFault:
    strike: Callable[[TwoNodes], None]
    """Returns when the fault is over and what the operator's supervisor restarts has been restarted."""
    costs: Callable[[TwoNodes], set[psutil.Process]] = _no_replica
    """The replicas that end with it, as they are before."""
    silence_s: float = 5.0
    """Longest time without a token for any stream."""
    whole_s: float = 120.0


def _controller_killed_twice(service: TwoNodes) -> None:
    for _ in range(2):
        killed = service.controller()
        killed.kill()
        wait_for(partial(_successor, service, killed), NOTICED_WITHIN_S)


def _controller_killed_while_engine_starts(service: TwoNodes) -> None:
    (worker,) = _decodes_of_other(service)
    worker.kill()
    wait_for(lambda: _decodes_of_other(service) - {worker}, NOTICED_WITHIN_S)
    service.controller().kill()


def _controller_hangs(service: TwoNodes) -> None:
    _stopped_for(AWAY_S, service.controller())


def _scheduler_hangs(seconds: float) -> Callable[[TwoNodes], None]:
    def strike(service: TwoNodes) -> None:
        (scheduler,) = service.processes(SCHEDULER_PROCESS)
        _stopped_for(seconds, scheduler)

    return strike


def _engines_killed(service: TwoNodes) -> None:
    engines = _all_engines(service)
    for process in engines:
        process.kill()
    wait_for(lambda: len(_all_engines(service) - engines) == len(engines), NOTICED_WITHIN_S)


def _raylet_killed(service: TwoNodes) -> None:
    _other_node_ends_with(service, [service.ray_process(service.other, RAYLET)])


def _agents_killed(service: TwoNodes) -> None:
    _other_node_ends_with(service, service.agents(service.other))


def _gcs_killed(service: TwoNodes) -> None:
    service.kill_gcs()
    try:
        _pass(AWAY_S)
        assert service.of_operators("/metrics").is_success  # which are read through Serve's handles
    finally:
        service.restart_gcs()


def _other_node_ends_with(service: TwoNodes, killed: list[psutil.Process]) -> None:
    """Until its raylet has ended with them, and been started again."""
    raylet = service.ray_process(service.other, RAYLET)
    for process in killed:
        process.kill()
    wait_for(lambda: not _runs(raylet), NOTICED_WITHIN_S)
    wait_for(lambda: not _decodes_of_other(service), NOTICED_WITHIN_S)
    service.start_other()


PLANE_FAULTS = {
    "controller SIGKILL, twice": PlaneFault(_controller_killed_twice),
    "controller SIGSTOP 10 s": PlaneFault(_controller_hangs),
    "controller SIGKILL while an engine starts": PlaneFault(
        _controller_killed_while_engine_starts, costs=_decodes_of_other
    ),
    "GCS SIGKILL, back after 10 s": PlaneFault(_gcs_killed),
    "raylet of a decode worker SIGKILL": PlaneFault(_raylet_killed, costs=_decodes_of_other),
    "Ray's agents of a node SIGKILL": PlaneFault(_agents_killed, costs=_decodes_of_other),
    "Scheduler SIGSTOP 1 s": PlaneFault(_scheduler_hangs(SHORT_PAUSE_S)),
    "Scheduler SIGSTOP 5 s": PlaneFault(_scheduler_hangs(LONG_PAUSE_S), silence_s=LONG_PAUSE_S + 5.0),
    "all engines SIGKILL": PlaneFault(_engines_killed, costs=_all_engines, silence_s=ENGINES_BACK_WITHIN_S),
}


def _successor(service: TwoNodes, killed: psutil.Process) -> bool:
    return any(process != killed for process in service.controllers())


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _stopped_for(seconds: float, process: psutil.Process) -> None:
    process.suspend()
    try:
        _pass(seconds)
    finally:
        process.resume()


def _pass(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251  # the fault lasts so long
