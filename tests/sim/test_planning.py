"""The computed plan against the simulator: each carries what the other says, within a factor."""

import pytest

from cluster.planning.alike_requests import alike_requests
from cluster.planning.capacity_plan import TENSOR_PARALLEL, Offer, best_plan, link_of
from cluster.planning.cell_check import search_cell
from cluster.planning.demand import demand_of
from cluster.planning.simulated_cell import cell_of
from cluster.simulation.experiment import Cluster, Experiment
from cluster.simulation.traffic.slos import parse_slos
from router.prediction.hardware import DEVICES, LINKS, MODELS

FEWEST, MOST = 0.6, 1.1
"""Devices of the simulated sizing, as a multiple of the computed one. The computed plan hands every request over; the
simulated Scheduler runs requests whole where that takes less.
"""


@pytest.mark.parametrize(
    ("model", "device", "lengths", "slo"),
    [("qwen3-32b", "h100", (1500, 60), "mid"), ("llama-3.1-8b", "l40s", (200, 100), "tight")],
)
def test_simulated_sizing_is_within_a_factor_of_the_computed_one_and_above_what_work_allows(
    model: str, device: str, lengths: tuple[int, int], slo: str
) -> None:
    slos, target, rate = parse_slos(slo), 0.9, 1000.0
    rows = alike_requests(rate, *lengths, 0.0, 1500)
    offer = Offer(model=MODELS[model], hardware=DEVICES[device], link=LINKS["400g"], step_tokens=2048, max_decoding=256)
    plan = best_plan(demand_of(rows, slos), rate, target, offer, TENSOR_PARALLEL)
    size = plan.pools.tensor_parallel
    cluster = Cluster(
        model=model,
        device=device,
        tensor_parallel=size,
        num_workers=sum(cell_of(plan.pools)),
        link=link_of(offer.link, size),
    )
    cell = search_cell(Experiment(rows, cluster, slos), plan, target, lambda: False, lambda *_: None)
    assert cell is not None and cell.is_finished
    assert cell.at_plan is not None
    devices = cell.pools(rate, size).num_devices
    assert FEWEST <= devices / plan.pools.num_devices <= MOST
    assert devices >= target * rate * plan.work_s * size


def test_search_that_runs_out_of_time_gives_what_it_has_found() -> None:
    slos = parse_slos("mid")
    rows = alike_requests(100.0, 2000, 300, 0.0, 300)
    offer = Offer(
        model=MODELS["qwen3-32b"], hardware=DEVICES["h100"], link=LINKS["400g"], step_tokens=2048, max_decoding=256
    )
    plan = best_plan(demand_of(rows, slos), 100.0, 0.9, offer, (2,))
    experiment = Experiment(rows, Cluster(num_workers=sum(cell_of(plan.pools))), slos)
    shown: list[float] = []

    def show(rate: float, _: object) -> None:
        shown.append(rate)

    assert search_cell(experiment, plan, 0.9, lambda: True, show) is None
    found = search_cell(experiment, plan, 0.9, lambda: bool(shown), show)
    assert found is not None and not found.is_finished and found.num_runs == 1
