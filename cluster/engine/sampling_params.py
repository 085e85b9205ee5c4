"""vLLM's sampling parameters on their way between processes, and what they allow."""

from vllm.sampling_params import SamplingParams
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

_ENCODER = MsgpackEncoder()
_DECODER = MsgpackDecoder(SamplingParams)  # kept: making one costs more than a request may


def encode_sampling_params(params: SamplingParams) -> bytes:
    (frame,) = _ENCODER.encode(params)
    return bytes(frame)


def decode_sampling_params(frame: bytes) -> SamplingParams:
    params: SamplingParams = _DECODER.decode(frame)
    return params


def is_resumable(params: SamplingParams) -> bool:
    """Whether each token depends on the tokens before it and on nothing else: not on which of them are output
    (penalties, min_tokens, bad words, grammars, stop strings), nor on a random generator's state (seed), and nothing is
    to be told of the prompt or of the step (logprobs).
    """
    return (
        params.n == 1
        and not params.stop
        and params.structured_outputs is None
        and params.presence_penalty == params.frequency_penalty == 0.0
        and params.repetition_penalty == 1.0
        and params.min_tokens == 0
        and not params.bad_words
        and (params.seed is None or params.temperature == 0.0)
        and params.logprobs is None
        and params.prompt_logprobs is None
        and not params.logprob_token_ids
        and params.thinking_token_budget is None
        and params.repetition_detection is None
        and not params.watermarking
        and params.trace_decode_token_ids is None
        and not params.extra_args
    )


def is_verifiable(params: SamplingParams) -> bool:
    """Whether an engine may report its most likely tokens to us, and they say what the model says: no client is to get
    others from the same step, and a grammar, which only the decode engine applies, would hide most of them.
    """
    return (
        params.n == 1
        and params.structured_outputs is None
        and params.logprobs is None
        and params.prompt_logprobs is None
        and not params.logprob_token_ids
    )
