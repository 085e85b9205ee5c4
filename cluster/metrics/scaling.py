"""Metrics of the autoscaler."""

from collections.abc import Iterable, Mapping

from prometheus_client import Gauge

from cluster.messages.ids import Pool

POOL_WANTED = Gauge("baton_pool_wanted", "Workers that the expected load needs, by pool.", ["pool"])
POOL_CONFIGURED = Gauge(
    "baton_pool_configured",
    "Workers of a pool of a fixed size, by cell (empty with one cell), as each ingress replica has it in its config. "
    "Missing where the pools size themselves.",
    ["cell", "pool"],
)
CELL_CONFIGURED = Gauge(
    "baton_cell_configured",
    "1 for each cell (empty with one cell) that an ingress replica has in its config: one with a Scheduler.",
    ["cell"],
)
POOL_TARGET = Gauge(
    "baton_pool_target",
    "Workers that Serve is asked for, by pool: more than wanted while workers are emptied.",
    ["pool"],
)
RETIRING = Gauge("baton_retiring_workers", "Workers that are used last, because they will be stopped.")
EXPECTED_REQUESTS = Gauge(
    "baton_expected_requests_per_second", "Requests that are expected when a worker that is ordered now is ready."
)
SCALING_CORRECTION = Gauge(
    "baton_scaling_correction", "Workers that turned out to be needed for each one that the latency models ask for."
)


def set_configured(cells: Iterable[str], pools: Mapping[Pool, int]) -> None:
    """Set what the config has. `pools`: the workers of each pool of a cell. Empty if the pools size themselves."""
    for cell in cells:
        CELL_CONFIGURED.labels(cell).set(1)
        for pool, number in pools.items():
            POOL_CONFIGURED.labels(cell, pool).set(number)
