"""Prompts of the link probe, sized for one engine."""

import random

from vllm.sampling_params import SamplingParams

from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import RequestId
from kvtransfer.telemetry import TransferLog


class EngineProbes:
    """vLLM's `ProbingEngine` (cluster/engine/port.py)."""

    def __init__(self, block_size: int, max_probe_tokens: int, vocab_size: int, transfers: TransferLog) -> None:
        self.transfers = transfers
        self.largest_probe_blocks = max_probe_tokens // block_size
        self._block_size = block_size
        self._vocab_size = vocab_size

    def probe_request(self, request_id: RequestId, num_blocks: int) -> GenerateRequest:
        rng = random.Random(request_id)
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=[rng.randrange(self._vocab_size) for _ in range(num_blocks * self._block_size)],
            sampling_params=encode_sampling_params(params),
            first_token_within_s=0.0,  # requests wait until the link has proved itself
        )
