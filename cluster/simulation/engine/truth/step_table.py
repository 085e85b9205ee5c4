"""StepTable: step times interpolated between measured ones. Pure.

A step with prompt tokens takes what its tokens take, and for each request that decodes beside them what it adds to a
decode batch. Attention that the points do not contain is linear.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from cluster.simulation.engine.truth.step_search import most_steps_within

Points = tuple[tuple[float, float], ...]
"""(work, seconds), both growing. Below the first point the time is that of the first one. Beyond the last point it
grows as between the last two.
"""


class StepTable(msgspec.Struct, frozen=True, kw_only=True):
    """Measured step times. The constructor checks that no time falls when the work grows."""

    prompt_s: Points
    """Seconds of a step by its prompt tokens, without attention."""
    decode_s: Points
    """Seconds of a step by the number of requests that decode, without attention."""
    attended_s: float
    """Seconds per pair of tokens of a prompt's attention."""
    context_s: float
    """Seconds per token of the decoding requests' context."""
    source: str = ""
    """What was measured, for messages."""

    def __post_init__(self) -> None:
        for name, points in (("prompt_s", self.prompt_s), ("decode_s", self.decode_s)):
            works, seconds = [work for work, _ in points], [seconds for _, seconds in points]
            if len(points) < 2 or works != sorted(set(works)) or seconds != sorted(seconds) or seconds[0] <= 0:
                raise ValueError(f"{name} must be two or more points whose work grows and whose seconds do not fall")
        if self.attended_s < 0 or self.context_s < 0:
            raise ValueError("attended_s and context_s must not be negative")
        if self.prompt_s[0][1] < self.decode_s[0][1]:
            raise ValueError("the shortest step with prompt tokens must not be shorter than the shortest decode step")

    def scaled(self, factor: float) -> "StepTable":
        """The table of an engine that takes `factor` times as long."""
        return msgspec.structs.replace(
            self,
            prompt_s=tuple((work, factor * seconds) for work, seconds in self.prompt_s),
            decode_s=tuple((work, factor * seconds) for work, seconds in self.decode_s),
            attended_s=factor * self.attended_s,
            context_s=factor * self.context_s,
        )

    def step_s(self, num_new: int, attended: float, num_decoding: int, context_tokens: int) -> float:
        if not num_new:
            return interpolated(self.decode_s, num_decoding) + context_tokens * self.context_s
        seconds = interpolated(self.prompt_s, num_new + num_decoding) + attended * self.attended_s
        if num_decoding:
            seconds += interpolated(self.decode_s, num_decoding) - self.decode_s[0][1]
        return seconds + context_tokens * self.context_s

    def decode_run_s(self, num_decoding: int, context_tokens: int, num_steps: int) -> float:
        grown = num_decoding * num_steps * (num_steps - 1) / 2
        context = num_steps * context_tokens + grown
        return num_steps * interpolated(self.decode_s, num_decoding) + context * self.context_s

    def decode_steps_within(self, num_decoding: int, context_tokens: int, seconds: float) -> int:
        return most_steps_within(self, num_decoding, context_tokens, seconds)


def interpolated(points: Sequence[tuple[float, float]], work: float) -> float:
    if work <= points[0][0]:
        return points[0][1]
    place = min(bisect_right(points, work, key=lambda point: point[0]), len(points) - 1)
    (work_before, before_s), (work_after, after_s) = points[place - 1], points[place]
    return before_s + (after_s - before_s) * (work - work_before) / (work_after - work_before)
