"""Prefills of one engine, and the leases on their KV blocks.

How many requests a worker runs at a time is bounded by `max_ongoing_requests` (cluster/config/pools.py), and how many
of them an engine steps together by vLLM's `max_num_seqs`.
"""

import asyncio
from contextlib import suppress

import msgspec

from cluster.engine.request_runner import RequestRunner
from cluster.engine.sampling_params import decode_sampling_params
from cluster.errors import ServingError
from cluster.messages.generation import FinishReason, GenerateRequest, TokenDelta
from cluster.messages.ids import RequestId
from cluster.step_stream.buffer import TokenBuffer, merged
from kvtransfer import verify
from kvtransfer.handoff import PREFILL_REQUEST, KVHandoff, PrefillResult
from kvtransfer.lease_terms import LeaseId


class EnginePrefills:
    """The `LendingEngine` (cluster/engine/port.py) on a vLLM engine."""

    def __init__(self, runner: RequestRunner, max_model_len: int) -> None:
        self._runner = runner
        self._max_model_len = max_model_len
        self._reaping: set[asyncio.Future[None]] = set()

    async def prefill(self, request: GenerateRequest) -> tuple[PrefillResult, float] | None:
        params = decode_sampling_params(request.sampling_params)
        num_left = None if params.max_tokens is None else params.max_tokens - request.num_generated
        params.max_tokens, params.min_tokens, params.n = 1, 0, 1
        params.stop, params.detokenize = [], False
        params.logprobs = verify.NUM_TOP if request.is_verified else None
        params.prompt_logprobs = params.structured_outputs = None
        buffer = TokenBuffer(1, received_at=asyncio.get_running_loop().time())
        running = await self._runner.start(request, params, PREFILL_REQUEST, buffer)
        deltas: list[TokenDelta] = []
        try:
            while batch := await buffer.next():
                deltas += batch
        finally:
            await self._runner.stop(request.request_id)
        if running.kv_transfer_params is None or not deltas:
            return None
        handoff = KVHandoff.from_engine(self._runner.worker, running.kv_transfer_params)
        # The engine was asked for one token, so it always reports the end by length.
        num_prompt = len(request.prompt_token_ids)
        is_last = num_left == 1 or num_prompt + 1 >= self._max_model_len
        first = merged(deltas)
        result = PrefillResult(handoff=handoff, first=first)
        if first.finish_reason is FinishReason.LENGTH and not (is_last and result.follows(num_prompt)):
            first = msgspec.structs.replace(first, finish_reason=None)
            result = msgspec.structs.replace(result, first=first)
        return result, running.finished_at

    async def abort(self, request_id: RequestId) -> None:
        await self._runner.abort(request_id)

    async def end_leases(self, leases: list[LeaseId]) -> list[LeaseId]:
        over: list[list[LeaseId]] = await self._runner.call("baton_end_leases", leases)
        return over[0]

    async def extend_leases(self, leases: list[LeaseId], seconds: float) -> list[LeaseId]:
        kept: list[list[LeaseId]] = await self._runner.call("baton_extend_leases", leases, seconds)
        return [lease for lease in leases if all(lease in of_rank for of_rank in kept)]

    def reap_orphan(self, lease: LeaseId) -> None:
        """End the lease of a prefill that finished after its request was closed."""
        task = asyncio.ensure_future(self._end_orphan(lease))
        self._reaping.add(task)
        task.add_done_callback(self._reaping.discard)

    async def _end_orphan(self, lease: LeaseId) -> None:
        with suppress(ServingError):  # a dead engine keeps no blocks
            await self.end_leases([lease])
