"""Searches the highest rate at which the cell of a plan attains the target, with Baton's Scheduler."""

from collections.abc import Callable

from cluster.planning.capacity_plan import CapacityPlan
from cluster.planning.simulated_cell import SimulatedCell, attained_of, cell_of, cell_rate
from cluster.simulation.experiment import Experiment, TargetMissed
from cluster.simulation.rate_search import max_rate
from cluster.simulation.results.summary import RunSummary, summary
from cluster.simulation.traffic.workload import RequestRecord

POLICY = "goodput"
"""The policy of production."""


class _OutOfTime(Exception):
    """The time for the simulation is over."""


def search_cell(
    experiment: Experiment,
    plan: CapacityPlan,
    target: float,
    is_out_of_time: Callable[[], bool],
    show: Callable[[float, RunSummary | None], None],
) -> SimulatedCell | None:
    """Search the highest rate at which the cell attains the target. `show` gets each rate with its figures, or None if
    the rate misses the target. None if no rate was seen to attain the target in time.
    """
    num_prefill, num_decode = cell_of(plan.pools)
    runs: dict[float, RunSummary | None] = {}

    def trial(rate: float) -> float | None:
        runs[rate] = run = _run(experiment, num_prefill, rate, target, is_out_of_time)
        show(rate, run)
        return attained_of(run) if run else None

    try:
        max_rate(trial, target, cell_rate(plan))
        is_finished = True
    except (_OutOfTime, ValueError):  # a ValueError: there are too few requests to load the workers
        is_finished = False
    attained = {rate: run for rate, run in runs.items() if run and attained_of(run) >= target}
    if not attained:
        return None
    rate, run = max(attained.items())
    first = next(iter(runs.values()))
    return SimulatedCell(
        num_prefill=num_prefill,
        num_decode=num_decode,
        rate_per_s=rate,
        run=run,
        at_plan=attained_of(first) if first else None,
        num_runs=len(runs),
        is_finished=is_finished,
    )


def _run(
    experiment: Experiment, num_prefill: int, rate: float, target: float, is_out_of_time: Callable[[], bool]
) -> RunSummary | None:
    """The figures at a rate. None if the target is out of reach."""
    has_ended = False

    def watch(_: RequestRecord) -> None:
        nonlocal has_ended
        if not has_ended and is_out_of_time():
            has_ended = True  # raise once: further requests end while the loop cancels what is left of the run
            raise _OutOfTime

    try:
        return summary(experiment.run(POLICY, num_prefill, rate, target=target, on_record=watch))
    except TargetMissed:
        return None
