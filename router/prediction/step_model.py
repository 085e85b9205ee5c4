"""StepModel: how long an engine's steps take, as a sum of terms with known coefficients. Pure.

A step that computes `num_new` prompt tokens and gives a token to `num_decoding` requests takes

    fixed_s                                                    launching, reading the weights once
    + experts_s * (1 - unrouted ** tokens)                     reading the experts that some token is routed to
    + token_s * tokens + beyond_knee_s * max(0, tokens - knee_tokens)          computing; tokens = new + decoding
    + attended_s * attended                                    attention of the prompt tokens
    + request_s * num_decoding + context_s * context_tokens    attention of the decoding requests

The knee is the number of tokens for which computing takes as long as reading the weights. Tokens below the knee are
nearly free: a small prefill beside a decode batch costs little. Attention over a prompt is quadratic, so the chunks of
a prompt do not change its sum. So a prefill and a run of decode steps are closed forms, however long, and each
prediction takes about a microsecond.
"""

from dataclasses import dataclass
from math import sqrt
from typing import final

_LEAST_PER_TOKEN = 1e-9
"""Lower bound of the seconds of a token. It keeps divisors above zero, and changes nothing else."""


def prompt_attention(num_new: float, num_cached: float) -> float:
    """Work of attention when `num_new` tokens are computed after `num_cached` tokens, in pairs of tokens. The number of
    chunks does not matter.
    """
    return num_new * num_cached + num_new * (num_new + 1) / 2


@final
@dataclass(frozen=True, kw_only=True)
class StepModel:
    """The coefficients of one kind of engine. No coefficient is negative, so times grow with the work."""

    fixed_s: float
    token_s: float
    knee_tokens: float
    beyond_knee_s: float
    attended_s: float
    request_s: float
    context_s: float
    experts_s: float = 0.0
    """Seconds for reading all experts of a mixture."""
    unrouted: float = 0.0
    """Share of the experts that a token is not routed to."""

    def scaled(self, factor: float) -> "StepModel":
        """The step model of an engine that takes `factor` times as long for everything."""
        return StepModel(
            fixed_s=factor * self.fixed_s,
            token_s=factor * self.token_s,
            knee_tokens=self.knee_tokens,
            beyond_knee_s=factor * self.beyond_knee_s,
            attended_s=factor * self.attended_s,
            request_s=factor * self.request_s,
            context_s=factor * self.context_s,
            experts_s=factor * self.experts_s,
            unrouted=self.unrouted,
        )

    def step_s(self, num_new: float, attended: float, num_decoding: float, context_tokens: float) -> float:
        """Seconds of one step. `attended`: the `prompt_attention` of the new tokens; `context_tokens`: context of all
        requests that decode, together.
        """
        tokens = num_new + num_decoding
        seconds = (
            self.fixed_s
            + tokens * self.token_s
            + attended * self.attended_s
            + num_decoding * self.request_s
            + context_tokens * self.context_s
        )
        if tokens > self.knee_tokens:
            seconds += (tokens - self.knee_tokens) * self.beyond_knee_s
        if self.experts_s:
            seconds += self.experts_s * (1 - self.unrouted**tokens)
        return seconds

    def tokens_within(self, seconds: float, num_decoding: float, context_tokens: float) -> float:
        """Prompt tokens that lengthen a step by at most `seconds`, beside `num_decoding` requests that decode.
        `context_tokens`: tokens before them, to which each of them attends. All experts are taken to be read for them.
        """
        if self.experts_s:
            seconds -= self.experts_s * self.unrouted**num_decoding
        if seconds <= 0.0:
            return 0.0
        # Each token attends to the new ones before it, too: to as many as a bound without them allows, at most.
        alone = self._tokens_of(seconds, num_decoding, context_tokens)
        return self._tokens_of(seconds, num_decoding, context_tokens + alone / 2)

    def added_s(self, num_new: int, num_before: float, context_tokens: float) -> float:
        """Seconds by which `num_new` prompt tokens lengthen a step that has `num_before` tokens already.
        `context_tokens`: tokens of their prompt that come before them.
        """
        num_tokens = num_before + num_new
        seconds = num_new * self.token_s + prompt_attention(num_new, context_tokens) * self.attended_s
        if num_tokens > self.knee_tokens:
            seconds += (num_tokens - max(self.knee_tokens, num_before)) * self.beyond_knee_s
        if self.experts_s:
            seconds += self.experts_s * (self.unrouted**num_before - self.unrouted**num_tokens)
        return seconds

    def _tokens_of(self, seconds: float, num_decoding: float, attended_each: float) -> float:
        token_s = self.token_s + attended_each * self.attended_s + _LEAST_PER_TOKEN
        free = max(0.0, self.knee_tokens - num_decoding)
        if free * token_s >= seconds:
            return seconds / token_s
        return free + (seconds - free * token_s) / (token_s + self.beyond_knee_s)

    def decode_s(self, num_decoding: float, context_tokens: float) -> float:
        return self.step_s(0.0, 0.0, num_decoding, context_tokens)

    def prefill_s(
        self,
        num_new: int,
        num_cached: int,
        chunk_tokens: int,
        num_decoding: int = 0,
        context_tokens: float = 0.0,
    ) -> float:
        """Seconds of a prompt that is computed in chunks of at most `chunk_tokens` beside requests that decode. Each of
        these requests gets one token per chunk (Sarathi-Serve).
        """
        if num_new <= 0:
            return 0.0
        num_full, rest = divmod(num_new, chunk_tokens)
        seconds = num_full * self.step_s(chunk_tokens, 0.0, num_decoding, context_tokens)
        seconds += self.step_s(rest, 0.0, num_decoding, context_tokens) if rest else 0.0
        steps = num_full + (rest > 0)
        grown = num_decoding * steps * (steps - 1) / 2
        return seconds + prompt_attention(num_new, num_cached) * self.attended_s + grown * self.context_s

    def decode_run_s(self, num_decoding: int, context_tokens: float, num_steps: int) -> float:
        """Seconds of `num_steps` decode steps in a row. The context grows by `num_decoding` tokens with each step."""
        grown = num_decoding * num_steps * (num_steps - 1) / 2
        return num_steps * self.decode_s(num_decoding, context_tokens) + grown * self.context_s

    def decode_steps_within(self, num_decoding: int, context_tokens: float, seconds: float) -> int:
        """The largest number of steps for which `decode_run_s` is at most `seconds`."""
        growth_s = num_decoding * self.context_s
        slope = self.decode_s(num_decoding, context_tokens) - growth_s / 2
        if seconds <= 0:
            return 0
        steps = int(2 * seconds / (slope + sqrt(slope * slope + 2 * growth_s * seconds)))
        while self.decode_run_s(num_decoding, context_tokens, steps + 1) <= seconds:  # the root is rounded
            steps += 1
        while steps and self.decode_run_s(num_decoding, context_tokens, steps) > seconds:
            steps -= 1
        return steps
