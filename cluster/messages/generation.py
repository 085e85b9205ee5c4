"""What is asked of an engine, and what it gives: rendered requests and token deltas.

One frozen struct per message, no behaviour beyond derived properties. Units are in the names. Token ids are those of
the served model's tokenizer.
"""

from enum import StrEnum
from typing import Self

import msgspec

from cluster.messages.ids import RequestId


class FinishReason(StrEnum):
    """Why a sequence ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered request: what an engine needs to generate, with the engine's own types left opaque."""

    request_id: RequestId
    prompt_token_ids: list[int]
    sampling_params: bytes
    """vLLM's SamplingParams, encoded by its own serializer (cluster/engine/engine.py)."""
    cache_salt: str | None = None
    """KV blocks are found again by requests of the same salt alone. None: by all that have none."""
    num_sequences: int = 1
    """`n` of the API: sequences that share this prompt."""
    max_output_tokens: int | None = None
    """Of each sequence."""
    needs_prompt_logprobs: bool = False
    is_resumable: bool = False
    """Another engine may go on with what one engine has generated, as if it were part of the prompt, and nobody can
    tell (cluster/engine/sampling_params.py).
    """
    num_generated: int = 0
    """So many tokens at the end of `prompt_token_ids` were generated for this request before."""
    is_verifiable: bool = False
    """The engine may be asked for its most likely tokens: no client has asked it for others."""
    is_verified: bool = False
    """The engine is to report its most likely first tokens, to be compared with another engine's."""
    is_suspect: bool = False
    """An engine was lost with it. It is given only to an engine that has just answered, so that the loss of that one,
    too, is told from the loss of many engines at once.
    """
    reasoning_ended: bool | None = None
    """Whether the prompt already closed its reasoning block: gates structured output (None: no reasoning parser)."""
    reasoning_parser_kwargs: dict[str, object] | None = None

    def after(self, token_ids: list[int]) -> Self:
        """The same request for an engine that goes on after these tokens."""
        return msgspec.structs.replace(
            self,
            prompt_token_ids=self.prompt_token_ids + token_ids,
            num_generated=self.num_generated + len(token_ids),
        )


class PromptTokenSources(msgspec.Struct, frozen=True, array_like=True):
    """Where the KV of a prompt's tokens came from on one engine; they add up to the prompt."""

    computed: int
    local: int
    """Hits in this engine's prefix cache."""
    pulled: int
    """Handed over by another engine."""
    offloaded: int = 0
    """Brought back from this engine's DRAM or disk tier."""

    @property
    def cached(self) -> int:
        """Tokens that this engine did not compute."""
        return self.local + self.pulled + self.offloaded


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float
    """Natural logarithm of the model's probability."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What one engine step produced for one sequence of a request."""

    sequence: int
    """Index in [0, num_sequences)."""
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token or stop string that ended the sequence."""
    prompt_sources: PromptTokenSources | None = None
    """On the first delta of a sequence."""
    logprobs: tuple[bytes, ...] | None = None
    """vLLM's sample and prompt logprobs of this step, opaque, when the request asked for them."""
    top_logprobs: list[TokenLogprob] | None = None
    """The most likely tokens of this step, on the first delta of a request whose handoff is verified."""
