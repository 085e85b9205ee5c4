"""Requests of the quality probe, in vLLM's terms: their prompts, what is asked of engines, and what comes back."""

from collections.abc import Sequence
from typing import Any, Protocol

from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.serial_utils import MsgpackDecoder

from cluster.engine.sampling_params import encode_sampling_params, is_resumable, is_verifiable
from cluster.messages.generation import GenerateRequest, TokenDelta, TokenLogprob
from cluster.messages.ids import RequestId
from cluster.messages.quality import Answer, AnswerStep
from kvtransfer.verify import NUM_TOP

LEAST_LOGPROB = -1e9
"""What stands for a smaller log-probability, in nats: JSON has no infinite numbers."""

_DECODER = MsgpackDecoder(EngineCoreOutput)


class PromptRenderer(Protocol):
    """The frontend, as the probe uses it."""

    async def tokens_of_text(self, text: str) -> list[int]:
        """The prompt of a text that the model continues. Raises ServingError."""
        ...

    async def tokens_of_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The prompt of a chat that the model answers. Raises ServingError, as for a model without a chat template."""
        ...


def probe_request(request_id: RequestId, prompt: list[int], num_tokens: int, salt: str) -> GenerateRequest:
    """A greedy answer of exactly this length, with the most likely tokens of each step."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=NUM_TOP)
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=encode_sampling_params(params),
        cache_salt=salt,
        max_output_tokens=num_tokens,
        is_resumable=is_resumable(params),
        is_verifiable=is_verifiable(params),
    )


def steps_of(delta: TokenDelta) -> Answer:
    """The tokens of a delta with the most likely ones of their steps. None are known for a token without
    log-probabilities. vLLM lists the token of a step before the most likely ones.
    """
    logprobs = _DECODER.decode(delta.logprobs).new_logprobs if delta.logprobs else None
    if logprobs is None:
        return [AnswerStep(token, []) for token in delta.token_ids]
    return [
        AnswerStep(token, [TokenLogprob(int(id), max(LEAST_LOGPROB, float(value))) for id, value in pairs])
        for token, pairs in zip(
            delta.token_ids,
            (zip(ids[1:], values[1:], strict=True) for ids, values in zip(*logprobs[:2], strict=True)),
            strict=True,
        )
    ]
