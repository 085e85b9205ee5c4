"""The settings of the Ray that `baton serve` starts."""

from collections.abc import Mapping

from cluster.config.application import AppConfig
from cluster.config.network import is_loopback
from cluster.repository import REPO_ROOT

OWN_CLUSTER = "local"
"""The RAY_ADDRESS with which Ray starts a new cluster."""
_RAY_ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With this variable, Ray takes 127.0.0.1 for its node's address, and everything that Ray starts listens there.
`ray.init` replaces a loopback address in its arguments by the node's own address.
"""
QUIET_RAY = {
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1",  # Serve's 0.1 burns 3 % of a core
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",  # Serve's 100 wakes each replica ten times a second per handle
    "RAY_enable_metrics_collection": "0",  # Baton has its own metrics (`GET /metrics`)
    "RAY_event_stats": "0",  # statistics about Ray's own event loops
    "RAY_task_events_report_interval_ms": "0",  # a history of Serve's calls, which nobody reads
    "REPORTER_UPDATE_INTERVAL_MS": "60000",  # statistics of processes in Ray's web pages
    "METRICS_RECORD_INTERVAL_S": "60",  # the same of the dashboard's own processes
    "LOG_NAME_UPDATE_INTERVAL_S": "2",  # looks for new log files; the lines of known ones come at once
}
"""Settings of the Ray that `baton serve` starts, with which Ray does less while nothing happens. An operator's own
values win. Longer intervals save little more, and with a longer control loop Serve replaces a dead replica later. With
shorter ones an idle service takes more CPU time.
"""


def ray_environment(config: AppConfig, operator: Mapping[str, str]) -> dict[str, str]:
    """The environment of `serve run`: the operator's variables, and defaults. RAY_ADDRESS starts a new cluster, unless
    the operator names an existing one.
    """
    defaults = {
        "RAY_ADDRESS": OWN_CLUSTER,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's default, 15, is for batch work: all other processes would delay tokens
        **QUIET_RAY,
        "PYTHONPATH": str(REPO_ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    if config.internal_host is not None and is_loopback(config.internal_host):
        defaults |= _RAY_ON_LOOPBACK if operator.get("RAY_ADDRESS", OWN_CLUSTER) == OWN_CLUSTER else {}
    return {**defaults, **operator}
