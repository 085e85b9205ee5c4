"""CellWorkers: the workers of all cells, as the ports with which a session runs a request."""

from collections.abc import AsyncGenerator, Sequence

from cluster.messages.generation import GenerateRequest, TokenDelta
from cluster.messages.ids import CellName, RequestId, WorkerId
from cluster.messages.retention import ToolWait
from cluster.simulation.pools.simulated_pools import SimulatedPools
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks


class CellWorkers:
    """The PrefillPort and the DecodePort of sessions whose requests run in any of several cells."""

    def __init__(self, pools: Sequence[SimulatedPools]) -> None:
        self._pools = {CellName(each.setting.cell): each for each in pools}

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        return await self._of(worker).prefill(worker, request)

    def withdraw(self, worker: WorkerId, request_id: RequestId) -> None:
        self._of(worker).withdraw(worker, request_id)

    def generate(
        self, worker: WorkerId, request: GenerateRequest, handoff: KVHandoff | None
    ) -> AsyncGenerator[TokenDelta, None]:
        return self._of(worker).generate(worker, request, handoff)

    def pause(self, worker: WorkerId, request_id: RequestId) -> None:
        self._of(worker).pause(worker, request_id)

    def await_tools(self, worker: WorkerId, wait: ToolWait) -> None:
        self._of(worker).await_tools(worker, wait)

    def forget(self, worker: WorkerId, blocks: PulledBlocks | None) -> None:
        self._of(worker).forget(worker, blocks)

    def _of(self, worker: WorkerId) -> SimulatedPools:
        return self._pools[cell_of_worker(worker)]


def cell_of_worker(worker: WorkerId) -> CellName:
    return CellName(worker.partition("/")[0])
