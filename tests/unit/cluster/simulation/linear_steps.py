"""A step model that a test can compute by head."""

from math import sqrt


class LinearSteps:
    """A step takes 10 ms, 0.1 ms per prompt token, 1 ms per decoding request and 1 us per token of their context."""

    def __init__(self, attended_s: float = 0.0, context_s: float = 1e-6) -> None:
        self._attended_s, self._context_s = attended_s, context_s

    def step_s(self, num_new: float, attended: float, num_decoding: float, context_tokens: float) -> float:
        seconds = 0.010 + 1e-4 * num_new + 1e-3 * num_decoding
        return seconds + self._attended_s * attended + self._context_s * context_tokens

    def decode_run_s(self, num_decoding: int, context_tokens: float, num_steps: int) -> float:
        grown = num_decoding * num_steps * (num_steps - 1) / 2
        return num_steps * self.step_s(0, 0.0, num_decoding, context_tokens) + grown * self._context_s

    def decode_steps_within(self, num_decoding: int, context_tokens: float, seconds: float) -> int:
        growth_s = num_decoding * self._context_s
        slope = self.step_s(0, 0.0, num_decoding, context_tokens) - growth_s / 2
        steps = int(2 * max(seconds, 0.0) / (slope + sqrt(slope * slope + 2 * growth_s * max(seconds, 0.0))))
        while self.decode_run_s(num_decoding, context_tokens, steps + 1) <= seconds:
            steps += 1
        while steps and self.decode_run_s(num_decoding, context_tokens, steps) > seconds:
            steps -= 1
        return steps
