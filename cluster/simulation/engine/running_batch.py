"""RunningBatch: the requests that have a seat in the steps of one simulated engine, prefilling or decoding. Pure."""

from cluster.simulation.engine.decode_batch import DecodeBatch
from cluster.simulation.engine.engine_request import EngineRequest, Phase
from router.prediction.step_model import prompt_attention


class RunningBatch:
    __slots__ = ("_max_requests", "chunks", "decodes", "firsts", "prefilling", "requests")

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self.requests: dict[EngineRequest, None] = {}
        """In order of admission."""
        self.prefilling: list[EngineRequest] = []
        self.decodes = DecodeBatch()
        self.chunks: list[EngineRequest] = []
        """Requests of which the step under way computes a chunk."""
        self.firsts: list[EngineRequest] = []
        """Requests that decode in the step under way and have no token yet: their prompt was computed elsewhere."""

    @property
    def is_full(self) -> bool:
        return len(self.requests) >= self._max_requests

    def prefill(self, request: EngineRequest) -> None:
        """Give a seat to a request whose prompt is to be computed."""
        request.phase = Phase.PREFILLING
        self.requests[request] = None
        self.prefilling.append(request)

    def decode_pulled(self, request: EngineRequest) -> None:
        """Give a seat to a request that lacks the KV of its last prompt token alone."""
        self.requests[request] = None
        if not request.num_generated:
            self.firsts.append(request)
        self.decodes.join(request)

    def decode_prefilled(self, request: EngineRequest) -> None:
        """Let a request whose prompt is computed decode on the seat that it has."""
        self.prefilling.remove(request)
        self.decodes.join(request)

    def leave(self, request: EngineRequest) -> None:
        if request.phase is Phase.DECODING:
            self.decodes.leave(request)
        else:
            self.prefilling.remove(request)
        del self.requests[request]

    def add_chunk(self, request: EngineRequest, budget: int) -> bool:
        """Compute the next chunk of a prompt, of at most `budget` tokens, in the next step. True for the last chunk."""
        left = request.num_to_prefill - request.num_computed
        request.chunk = min(budget, left)
        self.chunks.append(request)
        return request.chunk == left

    def work_of_chunks(self) -> tuple[int, float]:
        """Prompt tokens of the step under way, and the tokens that they attend to."""
        new, attended = 0, 0.0
        for request in self.chunks:
            chunk = request.chunk
            new += chunk
            attended += prompt_attention(chunk, request.num_computed)
        return new, attended

    def validate(self) -> None:
        """Assert every invariant. Tests call it between steps."""
        decoding, steps = [r for r in self.requests if r.phase is Phase.DECODING], self.decodes.steps
        assert len(self.requests) <= self._max_requests
        assert len(decoding) == self.decodes.number
        assert [r for r in self.requests if r.phase is Phase.PREFILLING] == self.prefilling
        assert self.decodes.context_tokens == sum(r.num_to_prefill + steps - r.joined_at_step for r in decoding)
