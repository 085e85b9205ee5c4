"""What a simulated engine is made from: its sizes, and the time of its steps. Pure."""

from enum import Enum
from typing import NamedTuple, Protocol

import msgspec


class StepTimes(Protocol):
    def step_s(self, num_new: int, attended: float, num_decoding: int, context_tokens: int, /) -> float:
        """`attended`: the sum of `prompt_attention` (router/prediction/step_model.py) over the prompts' chunks."""
        ...

    def decode_run_s(self, num_decoding: int, context_tokens: int, num_steps: int, /) -> float: ...

    def decode_steps_within(self, num_decoding: int, context_tokens: int, seconds: float, /) -> int:
        """The most steps for which `decode_run_s` is at most `seconds`."""
        ...


class EngineRules(NamedTuple):
    """What decides which prompts a step computes, and how much of them."""

    has_short_steps: bool = False
    """Steps have no given size: TPOT objectives bound them."""
    by_deadline: bool = False
    overtakes: bool = False
    divides_steps: bool = False
    """A prompt has a part of a step at most, and others the rest."""


class Engines(Enum):
    FIRST_COME = EngineRules()
    """vLLM's default: first come first served, in steps of a given size."""
    PRIORITY = EngineRules(by_deadline=True)
    """vLLM's priorities: prompts begin in the order in which they are due, in steps of a given size."""
    PARTIAL = EngineRules(divides_steps=True)
    """vLLM's `long_prefill_token_threshold`, in steps of a given size."""
    DEADLINE = EngineRules(by_deadline=True, overtakes=True)
    """Baton's order of prompts, in steps of a given size."""
    BATON = EngineRules(has_short_steps=True, by_deadline=True, overtakes=True)
    """Baton's: by deadline, in steps that TPOT objectives bound."""


class EngineSetting(msgspec.Struct, frozen=True, kw_only=True):
    kv_capacity_tokens: int
    max_step_tokens: int = 2048
    has_short_steps: bool = False
    """Whether steps in which requests decode are kept short enough for their TPOT objectives
    (router/prediction/step_chunk.py).
    """
    by_deadline: bool = False
    """Whether prompts begin in the order in which their first tokens are due, and not in the order of arrival."""
    overtakes: bool = False
    """Whether a prompt that is due earlier is computed before one that has begun."""
    most_of_prompt: int | None = None
    """Most tokens of one prompt in a step, as with vLLM's `long_prefill_token_threshold`."""
    max_decoding: int = 256
    """Requests that prefill or decode at a time."""
    block_size: int = 512
    """Tokens per block hash."""
    kept_share: float = 0.0
    """Most of the KV memory in which blocks are kept for conversations that are likely to go on soon."""
    host_tokens: int = 0
    """Capacity of the tier behind the GPU. 0 if there is none."""
    host_tokens_per_s: float = 100_000.0
    """Tokens per second that the DRAM tier brings back."""

    def fits(self, num_prompt: int, num_output: int) -> bool:
        """Whether a request can ever be admitted."""
        return num_prompt + num_output <= self.kv_capacity_tokens
