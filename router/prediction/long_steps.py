"""How an engine computes a prompt beside requests that decode: in steps within the bound (step_chunk.py), or, with a
mixture of experts, in long steps for which others save time. Pure.
"""

from typing import Final, final

from router.prediction.step_chunk import StepBound, chunk_tokens
from router.prediction.step_model import StepModel

MOST_OF_READING: Final = 0.2
"""Most share of the time that prompts add to a step that may go to reading experts, which it does however few their
tokens are. Higher computes prompts more slowly; lower has answers pause for longer at a time.
"""
LONG_OF_TPOT: Final = 4.0
"""Most time of a long step, as a multiple of the TPOT objective that binds, or that of its decodes and twice that of
reading experts where this is longer. Higher has answers pause for longer at a time, and those that have just begun wait
for what others have saved; lower computes prompts more slowly.
"""
MOST_SAVING: Final = 16
"""Most steps that only decode before a long one. Higher makes prompts late where decodes alone take nearly all of the
objective; lower makes answers late there.
"""


@final
class LongSteps:
    """How prompts are computed beside decodes where steps within the objective would mostly read experts for them: in
    steps that are long enough, each of which comes after some that only decode, so that their mean keeps the objective.
    """

    __slots__ = ("chunk", "num_saving", "seconds")

    def __init__(self, chunk: int, seconds: float, num_saving: float) -> None:
        self.chunk = chunk
        """Prompt tokens of a long step."""
        self.seconds = seconds
        self.num_saving = num_saving
        """Mean number of steps that only decode, for each long one."""


def long_steps(
    times: StepModel,
    bound: StepBound,
    num_decoding: float,
    decode_s: float,
    tpot_s: float,
    most: int,
    context_tokens: float,
) -> LongSteps | None:
    """None where steps within the bound are long enough. Without a mixture of experts, the tokens of a prompt take as
    long in short steps as in long ones.

    `decode_s`: of a step without prompts; `tpot_s`: the objective that binds; `most`: prompt tokens of any step;
    `context_tokens`: tokens of the prompt before a chunk.
    """
    if not times.experts_s:
        return None
    mean_s = bound.longest_step_s(decode_s, tpot_s)
    reading_s = times.experts_s * times.unrouted**num_decoding
    if reading_s <= MOST_OF_READING * (mean_s - decode_s):
        return None
    # Half of the time at least is for tokens, whatever the objective: no answer stops the prompts beside it.
    most_added_s = max(LONG_OF_TPOT * tpot_s - decode_s, 2 * reading_s)
    added_s = min(reading_s / MOST_OF_READING, most_added_s)
    chunk = min(most, chunk_tokens(times, num_decoding, added_s, context_tokens))
    seconds = decode_s + times.added_s(chunk, num_decoding, context_tokens)
    return LongSteps(chunk, seconds, min(MOST_SAVING, max(0.0, (seconds - mean_s) / (mean_s - decode_s))))


@final
class PromptSteps:
    """How an engine computes a prompt beside decodes."""

    __slots__ = ("chunk", "num_saving")

    def __init__(self, chunk: int, num_saving: float = 0.0) -> None:
        self.chunk = chunk
        """Most prompt tokens of a step."""
        self.num_saving = num_saving
        """Steps that only decode, for each step with so many tokens."""

    def token_s(self, times: StepModel, num_decoding: float, decode_s: float, context_tokens: float) -> float:
        """Seconds for each prompt token, beside requests whose step alone takes `decode_s`."""
        added_s = times.added_s(self.chunk, num_decoding, context_tokens)
        return ((1.0 + self.num_saving) * decode_s + added_s) / self.chunk


def prompt_steps(
    times: StepModel,
    bound: StepBound,
    num_decoding: float,
    decode_s: float,
    tpot_s: float,
    most: int,
    context_tokens: float,
) -> PromptSteps:
    """Arguments as for `long_steps`."""
    steps = long_steps(times, bound, num_decoding, decode_s, tpot_s, most, context_tokens)
    if steps is not None:
        return PromptSteps(steps.chunk, steps.num_saving)
    added_s = bound.longest_step_s(decode_s, tpot_s) - decode_s
    return PromptSteps(min(most, chunk_tokens(times, num_decoding, added_s, context_tokens)))
