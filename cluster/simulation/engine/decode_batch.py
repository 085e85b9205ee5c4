"""Decodes: the requests of one simulated engine that get a token with every step. Pure.

What a step costs depends on their number and on their context all together, and who ends with which step is known when
it joins: so any number of steps is one addition.
"""

from heapq import heappop, heappush

from cluster.simulation.engine.engine_request import EngineRequest, Phase


class Decodes:
    __slots__ = ("_num_joined", "_until", "context_tokens", "number", "steps")

    def __init__(self) -> None:
        self.number = 0
        self.context_tokens = 0
        """That they attend to in the next step, the token that is fed included."""
        self.steps = 0
        """That the engine has run."""
        self._until: list[tuple[int, int, EngineRequest]] = []
        """Heap of the steps that they end with; entries of those that have left earlier stay for a while."""
        self._num_joined = 0

    def join(self, request: EngineRequest) -> None:
        request.phase = Phase.DECODING
        request.joined_at_step = self.steps
        self._num_joined += 1
        request.decode_number = self._num_joined
        ends_at = self.steps + request.num_output - request.num_generated
        heappush(self._until, (ends_at, self._num_joined, request))
        self.number += 1
        self.context_tokens += request.num_to_prefill

    def leave(self, request: EngineRequest) -> None:
        num_steps = self.steps - request.joined_at_step
        request.num_generated += num_steps
        request.num_private += num_steps
        self.number -= 1
        self.context_tokens -= request.num_to_prefill

    def pass_steps(self, steps: int) -> list[EngineRequest]:
        """Everybody gets so many tokens. Returns those for whom the last of them was the last."""
        self.steps += steps
        self.context_tokens += self.number * steps
        ended = []
        while self._until and self._until[0][0] <= self.steps:
            _, number, request = heappop(self._until)
            if _is_here(request, number):
                ended.append(request)
        return ended

    def steps_until_end(self) -> int:
        """Until the first of them ends."""
        while not _is_here(self._until[0][2], self._until[0][1]):
            heappop(self._until)
        return self._until[0][0] - self.steps


def _is_here(request: EngineRequest, number: int) -> bool:
    return request.phase is Phase.DECODING and request.decode_number == number
