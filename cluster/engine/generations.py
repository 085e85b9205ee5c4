"""Generations of one engine, and the pulls of their prompts' KV blocks."""

from cluster.engine.request_runner import RequestRunner
from cluster.engine.sampling_params import decode_sampling_params
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import RequestId
from cluster.step_stream.buffer import DeltaSink
from kvtransfer import verify
from kvtransfer.handoff import KVHandoff
from kvtransfer.telemetry import Pull, PullLog


class EngineGenerations:
    """vLLM's `PullingEngine` (cluster/engine/port.py)."""

    def __init__(self, runner: RequestRunner, pulls: PullLog) -> None:
        self._runner = runner
        self._pulls = pulls

    async def start(
        self, request: GenerateRequest, handoff: KVHandoff | None, sink: DeltaSink, pull_deadline: float = 0.0
    ) -> None:
        params = decode_sampling_params(request.sampling_params)
        params.detokenize = bool(params.stop)
        if params.max_tokens is not None:
            params.max_tokens -= request.num_generated
        if request.is_verified:
            params.logprobs = verify.NUM_TOP
        await self._runner.start(request, params, handoff.to_engine(pull_deadline) if handoff else None, sink)

    async def stop(self, request_id: RequestId) -> None:
        await self._runner.stop(request_id)

    async def renew_pulls(self, deadlines: dict[RequestId, float]) -> dict[RequestId, float]:
        running = {request_id: self._runner.find(request_id) for request_id in deadlines}
        engine_ids = {r: found.sequence_ids[0] for r, found in running.items() if found and found.sequence_ids}
        seconds: list[dict[str, float]] = await self._runner.call(
            "baton_renew_pulls", {engine_id: deadlines[r] for r, engine_id in engine_ids.items()}
        )
        return {r: max(of_rank[engine_id] for of_rank in seconds) for r, engine_id in engine_ids.items()}

    def pull_of(self, request_id: RequestId) -> Pull | None:
        running = self._runner.find(request_id)
        return self._pulls.pop(running.sequence_ids[0]) if running and running.sequence_ids else None
