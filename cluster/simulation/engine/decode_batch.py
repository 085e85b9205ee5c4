"""DecodeBatch: the decoding requests of one simulated engine, which get a token with every step. Pure.

The cost of a step depends on the number of requests and on the sum of their contexts. The step with which a request
ends is known when it joins. So any number of steps is one addition.
"""

from heapq import heappop, heappush

from cluster.simulation.engine.engine_request import EngineRequest, Phase


class DecodeBatch:
    __slots__ = ("_num_joined", "_until", "context_tokens", "number", "steps")

    def __init__(self) -> None:
        self.number = 0
        self.context_tokens = 0
        """Tokens to which all requests together attend in the next step, with the token that is fed."""
        self.steps = 0
        """Steps since the start of the engine."""
        self._until: list[tuple[int, int, EngineRequest]] = []
        """Heap of the steps with which requests end. Entries of requests that have left earlier stay for a while."""
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
        """Give every request `steps` tokens; return the requests that have all their tokens now."""
        self.steps += steps
        self.context_tokens += self.number * steps
        ended = []
        while self._until and self._until[0][0] <= self.steps:
            _, number, request = heappop(self._until)
            if _is_here(request, number):
                ended.append(request)
        return ended

    def steps_until_end(self) -> int:
        """Steps until the first request ends."""
        while not _is_here(self._until[0][2], self._until[0][1]):
            heappop(self._until)
        return self._until[0][0] - self.steps


def _is_here(request: EngineRequest, number: int) -> bool:
    return request.phase is Phase.DECODING and request.decode_number == number
