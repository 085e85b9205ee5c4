"""A run with cells: N Schedulers, each with its own workers, behind one or more ingresses, on one virtual clock.

Each request comes to one ingress by chance, and stays there. Ingresses tell each other nothing.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from cluster.messages.ids import CellName
from cluster.simulation.cells.cell_front import CellFront
from cluster.simulation.cells.cell_workers import CellWorkers
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.pools.pool_setting import ClusterSetting
from cluster.simulation.pools.simulated_pools import SimulatedPools
from cluster.simulation.run import Client, Pauses, pass_pauses, serve_clients
from cluster.simulation.traffic.workload import RequestRecord, SimRequest
from cluster.uncollected import uncollected
from router.cells.cell_chooser import CellChooser
from router.pending_placements import PendingPlacements

LOOK_INTERVAL_S = 1.0
"""Virtual seconds between two looks at the load of the cells. Lower takes more time; higher measures less exactly."""


class CellsRun(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a run."""

    records: list[RequestRecord]
    """In the order of arrivals."""
    moved: float
    """Share of the placements that were in another cell than the one that was asked first."""
    loads: list[list[float]]
    """Share of the KV memory of each cell that its requests hold, at each look while requests arrived."""


def simulate_cells(
    workload: Sequence[SimRequest],
    cell: ClusterSetting,
    num_cells: int,
    make_scheduler: Callable[[], PendingPlacements],
    num_fronts: int = 1,
    make_chooser: Callable[[], CellChooser] = CellChooser,
) -> CellsRun:
    """Simulate the workload on cells of one setting. `make_scheduler` is called on the virtual loop, once per cell."""

    async def run() -> CellsRun:
        schedulers, pools, pauses = dict[CellName, PendingPlacements](), list[SimulatedPools](), Pauses()
        for number in range(num_cells):
            name = CellName(f"c{number}")
            schedulers[name] = make_scheduler()
            pass_pauses(schedulers[name], pauses)
            pools.append(SimulatedPools(msgspec.structs.replace(cell, cell=name), schedulers[name]))
        fronts = [CellFront(schedulers, _chooser(make_chooser, pools)) for _ in range(num_fronts)]
        workers, chance = CellWorkers(pools), random.Random(0)
        loads = list[list[float]]()
        watching = asyncio.get_running_loop().create_task(_watch(pools, workload[-1].arrival_s, loads))
        records = await serve_clients(
            workload,
            lambda number, sim: Client(number, sim, cell, workers, chance.choice(fronts), pauses),
        )
        await watching
        num_placed = sum(front.num_placed for front in fronts)
        moved = sum(front.num_moved for front in fronts) / max(1, num_placed)
        return CellsRun(records=records, moved=moved, loads=loads)

    with uncollected():
        return VirtualLoop().run(run())


def _chooser(make_chooser: Callable[[], CellChooser], pools: Sequence[SimulatedPools]) -> CellChooser:
    chooser = make_chooser()
    for each in pools:
        chooser.set_cell(CellName(each.setting.cell), capacity=float(len(each.workers)), is_open=True)
    return chooser


async def _watch(pools: Sequence[SimulatedPools], until_s: float, loads: list[list[float]]) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < until_s:
        await asyncio.sleep(LOOK_INTERVAL_S)
        loads.append([fmean(worker.load().kv_cache_usage for worker in each.workers) for each in pools])
