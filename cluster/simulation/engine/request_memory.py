"""RequestMemory: what each request of one simulated engine holds of the KV memory. Pure.

Invariant: a request holds memory exactly from its admission until it is freed.
"""

from cluster.simulation.engine.engine_request import EngineRequest, Phase
from cluster.simulation.engine.kv_cache import KvCache


class RequestMemory:
    __slots__ = ("_block_size", "_cache")

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._block_size = cache.block_size

    def admit(self, request: EngineRequest) -> int | None:
        """Take memory for the whole context of a request; return how many of its tokens the DRAM tier brings back. None
        if there is not enough memory.
        """
        cache, size = self._cache, self._block_size
        num_tokens = request.num_to_prefill
        on_gpu, on_host = cache.match(request.block_hashes, (num_tokens - 1) // size)
        missing = num_tokens - on_gpu * size
        if missing > cache.available_tokens:
            return None
        cache.hold(request.block_hashes[:on_gpu])
        if missing > cache.available_tokens:  # blocks of the prompt itself were idle, and counted as available
            cache.release(request.block_hashes[:on_gpu])
            return None
        cache.take(missing)
        request.num_held, request.num_private = on_gpu, missing
        request.num_computed = on_gpu * size
        if not request.num_preemptions:
            request.num_hit_tokens = request.num_computed
        return on_host * size

    def publish(self, request: EngineRequest, num_tokens: int) -> None:
        """Let other requests find the full blocks of the prompt that have KV: those of its first `num_tokens`."""
        blocks = request.block_hashes[: min(num_tokens, request.num_prompt) // self._block_size]
        if len(blocks) > request.num_held:
            self._cache.publish(blocks, request.num_held)
            request.num_private -= (len(blocks) - request.num_held) * self._block_size
            request.num_held = len(blocks)

    def return_last_token(self, request: EngineRequest) -> None:
        """Give back the memory of the last prompt token, which is taken again with the step that computes it."""
        self._cache.give_back(1)
        request.num_private -= 1

    def free(self, request: EngineRequest) -> None:
        """End a request."""
        self._cache.release(request.block_hashes[: request.num_held])
        self._cache.give_back(request.num_private)
        request.num_held = request.num_private = 0
        request.phase = Phase.ENDED
