"""vLLM's sampling parameters on their way between processes, and what each of their fields allows.

`FACTS` is the one table. A field allows nothing but its default, unless its fact says that it allows more. A field of
vLLM that is missing from the table allows nothing but its default either.
"""

from enum import Enum
from typing import Any, Final, NamedTuple

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

_ENCODER = MsgpackEncoder()
_DECODER = MsgpackDecoder(SamplingParams)  # kept: making one costs more than a request may


class Allowed(Enum):
    DEFAULT = "the field's default alone"
    ANY = "every value"
    ANY_IF_GREEDY = "every value where no token is drawn at random (temperature 0), elsewhere the default"


ANY: Final = Allowed.ANY
Values = tuple[Any, ...] | Allowed
"""The values of a field that are allowed."""


class Fact(NamedTuple):
    """What a request may still ask for, by the values of one field."""

    resumes_with: Values = Allowed.DEFAULT
    """The values with which another engine can go on with the request. Each token must depend on the tokens before it
    and on nothing else: not on which of them are output (penalties, min_tokens, bad words, grammars, stop strings), and
    not on the state of a random generator. The client must get nothing else of the prompt or of the step.
    """
    verifies_with: Values = Allowed.DEFAULT
    """The values with which Baton may ask an engine for its most likely tokens, and these are the model's own: a client
    does not ask for others from the same step, and a grammar, which only the decode engine applies, does not hide them.
    """
    plain_with: Values = Allowed.DEFAULT
    """The values that do not change the form of a stream's chunks, which may then be prepared once per request."""


_OPEN = Fact(resumes_with=ANY, verifies_with=ANY, plain_with=ANY)
_RESUMES_AND_VERIFIES = Fact(resumes_with=ANY, verifies_with=ANY)
_VERIFIES_AND_IS_PLAIN = Fact(verifies_with=ANY, plain_with=ANY)

FACTS: dict[str, Fact] = {
    # Used in one step, without regard to earlier steps
    "temperature": _OPEN,
    "top_p": _OPEN,
    "top_k": _OPEN,
    "min_p": _OPEN,
    "logit_bias": _OPEN,
    "allowed_token_ids": _OPEN,
    "stop_token_ids": _OPEN,
    "ignore_eos": _OPEN,
    # Counted by the engine adapter
    "max_tokens": _OPEN,
    # Used for the text, which the ingress makes
    "detokenize": _RESUMES_AND_VERIFIES,
    "skip_special_tokens": _OPEN,
    "spaces_between_special_tokens": _OPEN,
    "include_stop_str_in_output": _OPEN,
    # Dependent on the tokens before
    "stop": Fact(resumes_with=(None, []), verifies_with=ANY, plain_with=ANY),
    "presence_penalty": _VERIFIES_AND_IS_PLAIN,
    "frequency_penalty": _VERIFIES_AND_IS_PLAIN,
    "repetition_penalty": _VERIFIES_AND_IS_PLAIN,
    "min_tokens": _VERIFIES_AND_IS_PLAIN,
    "bad_words": Fact(resumes_with=(None, []), verifies_with=ANY, plain_with=ANY),
    "thinking_token_budget": Fact(verifies_with=ANY),
    "repetition_detection": Fact(verifies_with=ANY),
    "watermarking": Fact(resumes_with=(None, False), verifies_with=ANY),
    "trace_decode_token_ids": Fact(verifies_with=ANY),
    "extra_args": Fact(resumes_with=(None, {}), verifies_with=ANY, plain_with=(None, {})),
    # Used where tokens are drawn at random
    "seed": Fact(resumes_with=Allowed.ANY_IF_GREEDY, verifies_with=ANY, plain_with=ANY),
    # Shown to the client, or applied by the decode engine alone
    "n": Fact(),
    "logprobs": Fact(),
    "prompt_logprobs": Fact(),
    "prompt_logprob_token_ids": Fact(),
    "logprob_token_ids": Fact(resumes_with=(None, []), verifies_with=(None, [])),
    "structured_outputs": Fact(plain_with=ANY),
    # Used for how outputs are delivered
    "output_kind": Fact(resumes_with=ANY, verifies_with=ANY, plain_with=(RequestOutputKind.DELTA,)),
    "stream_interval": _RESUMES_AND_VERIFIES,
    # Without effect on the tokens unless fields above are set
    "flat_logprobs": _RESUMES_AND_VERIFIES,
    "prompt_logprob_start": _RESUMES_AND_VERIFIES,
    "routed_experts_prompt_start": _RESUMES_AND_VERIFIES,
    # Set by vLLM, from the fields above
    "skip_clone": _OPEN,
    "output_text_buffer_length": _OPEN,
    "skip_reading_prefix_cache": _OPEN,
    "_eos_token_id": _OPEN,
    "_all_stop_token_ids": _OPEN,
    "_watermarking_skipped": _OPEN,
    "_bad_words_token_ids": _OPEN,
}


PLAIN_FIELDS = frozenset(name for name, fact in FACTS.items() if fact.plain_with is ANY)
"""The fields that never change the form of a stream's chunks."""


class Check(NamedTuple):
    """What must hold of one field."""

    name: str
    values: tuple[Any, ...]
    is_void_if_greedy: bool


class Checks(NamedTuple):
    """What must hold of a request that is resumed, verified, or streamed from prepared frames."""

    resumes: list[Check]
    verifies: list[Check]
    is_plain: list[Check]


def checks_of(facts: dict[str, Fact]) -> Checks:
    """The checks of every field of vLLM that `facts` do not open."""
    default = SamplingParams()
    checks = Checks([], [], [])
    for name in SamplingParams.__struct_fields__:
        for aspect, allowed in zip(checks, facts.get(name, Fact()), strict=True):
            if allowed is not ANY:
                values = allowed if isinstance(allowed, tuple) else (getattr(default, name),)
                aspect.append(Check(name, values, allowed is Allowed.ANY_IF_GREEDY))
    return checks


_CHECKS = checks_of(FACTS)


def encode_sampling_params(params: SamplingParams) -> bytes:
    (frame,) = _ENCODER.encode(params)
    return bytes(frame)


def decode_sampling_params(frame: bytes) -> SamplingParams:
    params: SamplingParams = _DECODER.decode(frame)
    return params


def passes(params: SamplingParams, checks: list[Check]) -> bool:
    is_greedy = params.temperature == 0.0
    return all(
        (is_greedy and is_void_if_greedy) or _is_among(getattr(params, name), values)
        for name, values, is_void_if_greedy in checks
    )


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    """`value in values`, also for an array, which must not be compared with None."""
    return any(value is None if one is None else value == one for one in values)


def is_resumable(params: SamplingParams) -> bool:
    """Whether another engine can go on with what one engine has generated, and the client cannot tell."""
    return passes(params, _CHECKS.resumes)


def is_verifiable(params: SamplingParams) -> bool:
    """Whether an engine may be asked for its most likely tokens."""
    return passes(params, _CHECKS.verifies)


def is_plain(params: SamplingParams) -> bool:
    """Whether the chunks of the request's stream have the form that depends on no parameter."""
    return passes(params, _CHECKS.is_plain)
