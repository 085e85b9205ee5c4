"""A RequestRunner without an engine, and requests for it."""

from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import SamplingParams

from cluster.engine.request_runner import RequestRunner
from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import FinishReason, GenerateRequest, TokenDelta
from cluster.messages.ids import RequestId, WorkerId
from cluster.step_stream.buffer import DeltaSink
from kvtransfer.lease_terms import LeaseId

PROMPT, MAX_MODEL_LEN = [5, 6, 7], 100
R, A, B = RequestId("r"), LeaseId("a"), LeaseId("b")
PARAMS = {
    "remote_engine_id": "e",
    "remote_request_id": "lease",
    "remote_host": "h",
    "remote_port": 1,
    "remote_block_ids": [[1]],
    "remote_num_tokens": len(PROMPT),
}


def a_request(num_generated: int = 0, is_verified: bool = False, **params: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=R,
        prompt_token_ids=PROMPT,
        sampling_params=encode_sampling_params(SamplingParams(**params)),
        num_generated=num_generated,
        is_verified=is_verified,
    )


class Runner(RequestRunner):
    """Ends each request with one token, as vLLM does where one was asked for, and answers calls for each rank."""

    worker = WorkerId("p")

    def __init__(self) -> None:
        self.params: SamplingParams | None = None
        self.kv_transfer_params: dict[str, Any] | None = None
        self.returned: dict[str, Any] | None = PARAMS
        self.finish = FinishReason.LENGTH
        self.stopped: list[RequestId] = []
        self.calls: list[tuple[str, Any]] = []
        self.answers: list[Any] = []

    async def start(
        self,
        request: GenerateRequest,
        params: SamplingParams,
        kv_transfer_params: dict[str, Any] | None,
        sink: DeltaSink,
    ) -> Any:
        self.params, self.kv_transfer_params = params, kv_transfer_params
        sink.put(TokenDelta(0, [9], self.finish))
        return SimpleNamespace(kv_transfer_params=self.returned, finished_at=4.0)

    async def stop(self, request_id: RequestId) -> None:
        self.stopped.append(request_id)

    def find(self, request_id: RequestId) -> Any:
        return SimpleNamespace(sequence_ids=[f"{request_id}-internal"]) if request_id == R else None

    async def call(self, method: str, *args: Any) -> list[Any]:
        self.calls.append((method, args))
        return self.answers
