"""What can be struck of Ray on two nodes, as data: who is killed, and how long the service may take until it is whole
again.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.drills.two_nodes import TwoNodes

AWAY_S = 10.0
"""How long a GCS that was killed stays away."""


@dataclass(frozen=True)
class PlaneFault:
    strike: Callable[[TwoNodes], None]
    """Returns when the fault is over and what the operator's supervisor restarts has been restarted."""
    silence_s: float = 5.0
    """Longest time without a token for any stream."""
    whole_s: float = 120.0


def _gcs_killed(service: TwoNodes) -> None:
    service.kill_gcs()
    try:
        _pass(AWAY_S)
        assert service.get("/metrics").is_success  # which are read through Serve's handles
    finally:
        service.restart_gcs()


PLANE_FAULTS = {
    "GCS SIGKILL, back after 10 s": PlaneFault(_gcs_killed),
}


def _pass(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251  # the fault lasts so long
