"""What an engine is asked for and what it gives: rendered requests and token deltas.

Each message is one frozen struct without behaviour, except for derived properties. Units are in the names. Token ids
are ids of the served model's tokenizer.
"""

from enum import StrEnum
from typing import Self

import msgspec

from cluster.messages.ids import RequestId
from cluster.messages.timeline import TimelineStage


class FinishReason(StrEnum):
    """Why a sequence ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered request: what an engine needs to generate. The engine's own types are opaque."""

    request_id: RequestId
    prompt_token_ids: list[int]
    sampling_params: bytes
    """vLLM's SamplingParams, encoded by vLLM's serializer (cluster/engine/sampling_params.py)."""
    cache_salt: str | None = None
    """Only requests with the same salt find each other's KV blocks. Requests without a salt share their blocks."""
    num_public_tokens: int = 0
    """Number of tokens at the start of the prompt that are of a public prefix: all requests with such a start find each
    other's KV blocks of it, whatever their salt is. A whole number of KV blocks, and 0 without a salt.
    """
    num_sequences: int = 1
    """Sequences that share this prompt: `n` of the API."""
    max_output_tokens: int | None = None
    """Most output tokens of each sequence. None if the client set no limit."""
    needs_prompt_logprobs: bool = False
    """Whether the client wants log probabilities of the prompt's tokens."""
    is_resumable: bool = False
    """Whether another engine may continue from what one engine has generated, as if it were part of the prompt, and the
    client cannot tell (cluster/engine/sampling_params.py).
    """
    num_generated: int = 0
    """Number of tokens at the end of `prompt_token_ids` that were generated for this request by earlier attempts."""
    is_verifiable: bool = False
    """Whether the engine may be asked for its most likely tokens. False if the client has asked for log probabilities
    itself.
    """
    is_verified: bool = False
    """Whether the engine reports its most likely first tokens, which are compared with another engine's."""
    is_suspect: bool = False
    """Whether an engine was lost with this request. A suspect request is given only to an engine that has just
    answered, so that its loss can be told from the loss of many engines at once.
    """
    is_probe: bool = False
    """Whether the request is of a link probe, and of no session."""
    first_token_within_s: float | None = None
    """Seconds from the sending of this message until the first token is due, by the TTFT objective. Negative if it is
    late. An engine computes prompts in the order of these times. None if no time is known: such a prompt comes last.
    """
    tpot_s: float | None = None
    """TPOT objective, in seconds. Steps that compute prompts are kept short enough for it while the request decodes.
    None if there is none.
    """
    rank: int = 0
    """Rank of the request's SLO class (`SloClass.rank`). An engine without memory preempts the highest rank first."""
    reasoning_ended: bool | None = None
    """Whether the prompt already closed its reasoning block, before which structured output does not apply. None
    without a reasoning parser.
    """
    reasoning_parser_kwargs: dict[str, object] | None = None

    def after(self, token_ids: list[int]) -> Self:
        """The same request for an engine that continues after these tokens."""
        return msgspec.structs.replace(
            self,
            prompt_token_ids=self.prompt_token_ids + token_ids,
            num_generated=self.num_generated + len(token_ids),
        )


class PromptTokenSources(msgspec.Struct, frozen=True, array_like=True):
    """The number of a prompt's tokens by the source of their KV on one engine. The numbers add up to the prompt."""

    computed: int
    """Tokens that the engine computed."""
    local: int
    """Hits in the engine's prefix cache."""
    pulled: int
    """Tokens that another engine handed over."""
    offloaded: int = 0
    """Tokens from the worker's DRAM or disk tier."""

    @property
    def cached(self) -> int:
        """Tokens that the engine did not compute."""
        return self.local + self.pulled + self.offloaded


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float
    """Natural logarithm of the model's probability."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What one engine step produced for one sequence of a request."""

    sequence: int
    """Index of the sequence, in [0, num_sequences)."""
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token or stop string that ended the sequence."""
    prompt_sources: PromptTokenSources | None = None
    """The sources of the prompt's KV, on the first delta of a sequence."""
    logprobs: tuple[bytes, ...] | None = None
    """vLLM's sample and prompt logprobs of this step, opaque, if the request asked for them."""
    top_logprobs: list[TokenLogprob] | None = None
    """The most likely tokens of this step, on the first delta of a request whose handoff is verified."""
    stages: tuple[TimelineStage, ...] | None = None
    """What the worker has measured until this token, on the first delta of a sequence (cluster/step_stream/)."""
    num_steps: int = 0
    """Steps of the engine from the first token of the sequence to this one, on its last delta. 0 if they were not
    counted.
    """
