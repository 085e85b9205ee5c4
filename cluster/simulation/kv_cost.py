"""NVIDIA Dynamo's KV router with its default weights, as a baseline.

The rule takes the worker with the least sum of prompt tokens to compute and KV tokens of all its requests. Queued
requests and the new one count for both. As in Dynamo, KV blocks that several requests of a worker share count once.
"""

from collections import Counter

from cluster.messages.ids import Path, RequestId, WorkerId
from router.load.worker_state import WorkerState
from router.placement.candidates import Candidates, Choice
from router.placement.lmetric import tokens_to_compute
from router.placement.placement_input import PlacementInput
from router.prediction.learned_latency import LatencyModels


class KvCost:
    """The rule. It keeps the prompt blocks of the requests that it has seen, so each run needs its own."""

    __slots__ = ("_costs", "_costs_of", "_held", "_prompts")

    def __init__(self) -> None:
        self._prompts: dict[RequestId, list[bytes]] = {}
        """Block hashes of the prompts that were to be placed."""
        self._held: dict[WorkerId, _HeldBlocks] = {}
        self._costs: dict[WorkerId, float] = {}
        """Costs of the request that is being placed, which a rule with a filter asks for several times."""
        self._costs_of: PlacementInput | None = None

    def __call__(self, placement_input: PlacementInput, candidates: Candidates, models: LatencyModels) -> Choice | None:
        request = placement_input.request
        self._prompts[request.request_id] = request.block_hashes
        if not candidates.decodes:
            return None
        if self._costs_of is not placement_input:
            self._costs_of = placement_input
            self._costs = {worker.worker: self._cost(placement_input, worker) for worker in candidates.decodes}
        best = min(candidates.decodes, key=lambda worker: self._costs[worker.worker])
        return Choice(Path.DECODE, None, best, "least KV cost")

    def _cost(self, placement_input: PlacementInput, worker: WorkerState) -> float:
        held = self._held.setdefault(worker.worker, _HeldBlocks())
        held.update(worker, self._prompts)
        num_shared = held.num_repeated + held.num_held_of(placement_input.request.block_hashes)
        num_queued = sum(charge.num_prompt for charge in worker.prompts.charges.values())
        num_tokens = worker.running.context_tokens(placement_input.now) + num_queued + placement_input.num_prompt
        return tokens_to_compute(placement_input, worker) + num_tokens - worker.block_size * num_shared


class _HeldBlocks:
    """Prompt blocks of the open requests of one worker."""

    __slots__ = ("_number", "_requests")

    def __init__(self) -> None:
        self._requests: dict[RequestId, list[bytes]] = {}
        self._number = Counter[bytes]()
        """Open requests that have the block."""

    @property
    def num_repeated(self) -> int:
        """Blocks that would be held in addition if no two requests shared any."""
        return sum(map(len, self._requests.values())) - len(self._number)

    def num_held_of(self, prompt: list[bytes]) -> int:
        """Blocks from the start of the prompt. Hashes are chained, so that no later block is held without these."""
        return next((number for number, block in enumerate(prompt) if block not in self._number), len(prompt))

    def update(self, worker: WorkerState, prompts: dict[RequestId, list[bytes]]) -> None:
        """Follow the requests of the worker. `prompts`: the block hashes of all requests that were to be placed."""
        for ended in self._requests.keys() - worker.charges.keys():
            for block in self._requests.pop(ended):
                self._number[block] -= 1
                if not self._number[block]:
                    del self._number[block]
        for begun in worker.charges.keys() - self._requests.keys():
            self._requests[begun] = prompts.get(begun, [])
            self._number.update(self._requests[begun])
