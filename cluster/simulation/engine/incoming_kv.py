"""IncomingKv: requests of one simulated engine that have memory and wait for KV, and those whose KV has come. Pure.

KV comes from another engine, whose transfer the owner of the engine simulates, or from the DRAM tier, which brings back
one request's tokens after the other's.
"""

from collections import deque
from math import inf

from cluster.simulation.engine.engine_request import EngineRequest, Phase


class IncomingKv:
    __slots__ = ("_host_free_at", "_loads", "_num_pulling", "_tokens_per_s", "ready")

    def __init__(self, host_tokens_per_s: float) -> None:
        self._tokens_per_s = host_tokens_per_s
        self._host_free_at = 0.0
        self._loads: deque[tuple[float, EngineRequest]] = deque()
        """Times at which loads from the DRAM tier end, with their requests."""
        self._num_pulling = 0
        self.ready: deque[EngineRequest] = deque()
        """Requests whose KV has come. They join the next step that has a seat."""

    def __len__(self) -> int:
        return self._num_pulling + len(self._loads) + len(self.ready)

    @property
    def next_at(self) -> float:
        """When the next load from the DRAM tier ends; inf if there is none."""
        return self._loads[0][0] if self._loads else inf

    def pull(self, request: EngineRequest) -> None:
        """Wait for KV from another engine."""
        request.phase = Phase.PULLING
        self._num_pulling += 1

    def pulled(self, request: EngineRequest, num_tokens: int) -> None:
        self._num_pulling -= 1
        request.num_pulled = num_tokens
        self._has_come(request, num_tokens)

    def load(self, request: EngineRequest, num_tokens: int, now: float) -> None:
        """Bring tokens back from the DRAM tier."""
        request.phase = Phase.LOADING
        request.num_loaded_tokens = num_tokens
        self._host_free_at = max(self._host_free_at, now) + num_tokens / self._tokens_per_s
        self._loads.append((self._host_free_at, request))

    def end_load(self) -> None:
        """End the load that is due at `next_at`."""
        _, request = self._loads.popleft()
        self._has_come(request, request.num_hit_tokens + request.num_loaded_tokens)

    def drop(self, request: EngineRequest) -> None:
        match request.phase:
            case Phase.PULLING:
                self._num_pulling -= 1
            case Phase.LOADING:
                self._loads = deque(load for load in self._loads if load[1] is not request)
            case Phase.READY:
                self.ready.remove(request)

    def _has_come(self, request: EngineRequest, num_computed: int) -> None:
        request.phase = Phase.READY
        request.num_computed = max(num_computed, request.num_computed)
        self.ready.append(request)
