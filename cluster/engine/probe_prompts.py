"""Prompts of the link probe, sized for one engine."""

import random

from vllm.sampling_params import SamplingParams

from cluster.engine.sampling_params import encode_sampling_params
from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import RequestId
from cluster.messages.reports import EngineShape
from kvtransfer.telemetry import TransferLog

LARGE_BLOCKS = 8
"""KV blocks of the largest probe of an engine whose steps are shorter than that. More disturbs requests for more steps;
fewer is too close to the smallest probe (decode/link_probe.py) to tell the speed of a link.
"""


class EngineProbes:
    """vLLM's `ProbingEngine` (cluster/engine/port.py)."""

    def __init__(self, shape: EngineShape, max_model_len: int, vocab_size: int, transfers: TransferLog) -> None:
        """`max_model_len`: tokens of the engine's context, half of which a probe leaves free."""
        block_size = shape.block_size
        self.transfers = transfers
        self.largest_probe_blocks = min(
            max(shape.max_step_tokens // block_size, LARGE_BLOCKS), max_model_len // 2 // block_size
        )
        self._block_size = block_size
        self._vocab_size = vocab_size

    def probe_request(self, request_id: RequestId, num_blocks: int) -> GenerateRequest:
        rng = random.Random(request_id)
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=[rng.randrange(self._vocab_size) for _ in range(num_blocks * self._block_size)],
            sampling_params=encode_sampling_params(params),
            is_probe=True,
            first_token_within_s=0.0,  # requests wait until the link has proved itself
        )
