"""vLLM's sampling parameters on their way between processes, and what each of their fields allows.

`FACTS` is the one table. A field of vLLM that is missing from the table allows nothing but its default.
"""

from typing import Any, NamedTuple

from vllm.sampling_params import SamplingParams
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

_ENCODER = MsgpackEncoder()
_DECODER = MsgpackDecoder(SamplingParams)  # kept: making one costs more than a request may


class Fact(NamedTuple):
    """What a field allows. None if it allows it with any value."""

    resumes_with: tuple[Any, ...] | None = None
    """The values with which another engine can go on with the request. Each token must depend on the tokens before it
    and on nothing else: not on which of them are output (penalties, min_tokens, bad words, grammars, stop strings), and
    not on the state of a random generator. The client must get nothing else of the prompt or of the step.
    """
    verifies_with: tuple[Any, ...] | None = None
    """The values with which Baton may ask an engine for its most likely tokens, and these are the model's own: a client
    does not ask for others from the same step, and a grammar, which only the decode engine applies, does not hide them.
    """
    is_plain: bool = False
    """Chunks of a stream do not depend on the field, so they may be prepared once per request."""


_PLAIN = Fact(is_plain=True)
_ANY = Fact()

FACTS: dict[str, Fact] = {
    # Used in one step, without regard to earlier steps
    "temperature": _PLAIN,
    "top_p": _PLAIN,
    "top_k": _PLAIN,
    "min_p": _PLAIN,
    "logit_bias": _PLAIN,
    "allowed_token_ids": _PLAIN,
    "stop_token_ids": _PLAIN,
    "ignore_eos": _PLAIN,
    # Counted by the engine adapter
    "max_tokens": _PLAIN,
    # Used for the text, which the ingress makes
    "detokenize": _ANY,
    "skip_special_tokens": _PLAIN,
    "spaces_between_special_tokens": _PLAIN,
    "include_stop_str_in_output": _PLAIN,
    # Dependent on the tokens before
    "stop": Fact(resumes_with=(None, []), is_plain=True),
    "presence_penalty": Fact(resumes_with=(0.0,), is_plain=True),
    "frequency_penalty": Fact(resumes_with=(0.0,), is_plain=True),
    "repetition_penalty": Fact(resumes_with=(1.0,), is_plain=True),
    "min_tokens": Fact(resumes_with=(0,), is_plain=True),
    "bad_words": Fact(resumes_with=(None, []), is_plain=True),
    "thinking_token_budget": Fact(resumes_with=(None,)),
    "repetition_detection": Fact(resumes_with=(None,)),
    "watermarking": Fact(resumes_with=(None, False)),
    "trace_decode_token_ids": Fact(resumes_with=(None,)),
    "extra_args": Fact(resumes_with=(None, {})),
    # A seed matters only where tokens are drawn (`is_resumable`)
    "seed": _PLAIN,
    # Shown to the client, or applied by the decode engine alone
    "n": Fact(resumes_with=(1,), verifies_with=(1,)),
    "logprobs": Fact(resumes_with=(None,), verifies_with=(None,)),
    "prompt_logprobs": Fact(resumes_with=(None,), verifies_with=(None,)),
    "logprob_token_ids": Fact(resumes_with=(None, []), verifies_with=(None, [])),
    "structured_outputs": Fact(resumes_with=(None,), verifies_with=(None,), is_plain=True),
    # Used for how outputs are delivered, or without effect unless fields above are set
    "output_kind": _ANY,
    "stream_interval": _ANY,
    "skip_clone": _ANY,
    "output_text_buffer_length": _ANY,
    "flat_logprobs": _ANY,
    "prompt_logprob_token_ids": _ANY,
    "prompt_logprob_start": _ANY,
    "skip_reading_prefix_cache": _ANY,
    "routed_experts_prompt_start": _ANY,
    "_eos_token_id": _ANY,
    "_all_stop_token_ids": _ANY,
    "_watermarking_skipped": _ANY,
    "_bad_words_token_ids": _ANY,
}

PLAIN_FIELDS = frozenset(name for name, fact in FACTS.items() if fact.is_plain)


def checks_of(facts: dict[str, Fact]) -> tuple[list[tuple[str, tuple[Any, ...]]], list[tuple[str, tuple[Any, ...]]]]:
    """What must hold for a request to be resumed, and to be verified: fields, and the values that each field may
    have.
    """
    default = SamplingParams()
    resumes: list[tuple[str, tuple[Any, ...]]] = []
    verifies: list[tuple[str, tuple[Any, ...]]] = []
    for name in SamplingParams.__struct_fields__:
        values = (getattr(default, name),)
        fact = facts.get(name, Fact(resumes_with=values, verifies_with=values))
        if fact.resumes_with is not None:
            resumes.append((name, fact.resumes_with))
        if fact.verifies_with is not None:
            verifies.append((name, fact.verifies_with))
    return resumes, verifies


_RESUMES, _VERIFIES = checks_of(FACTS)


def encode_sampling_params(params: SamplingParams) -> bytes:
    (frame,) = _ENCODER.encode(params)
    return bytes(frame)


def decode_sampling_params(frame: bytes) -> SamplingParams:
    params: SamplingParams = _DECODER.decode(frame)
    return params


def is_resumable(params: SamplingParams) -> bool:
    """Whether another engine can go on with what one engine has generated, and the client cannot tell."""
    if params.seed is not None and params.temperature != 0.0:
        return False
    return all(getattr(params, name) in values for name, values in _RESUMES)


def is_verifiable(params: SamplingParams) -> bool:
    """Whether an engine may be asked for its most likely tokens."""
    return all(getattr(params, name) in values for name, values in _VERIFIES)
