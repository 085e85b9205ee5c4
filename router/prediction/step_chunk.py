"""How many prompt tokens a step may compute beside requests that decode. Pure.

Every request that decodes waits for the whole step. So a step with prompts may take what the TPOT objectives of these
requests allow, and the more tokens of prompts it computes, the less often the decodes' own part of a step is paid for
them. An objective may be shorter than a step without any prompts. It is lost then, whatever the step computes, so it
bounds steps less. Engines choose their steps by this rule (cluster/engine_scheduler/deadline_scheduler.py), and the
Scheduler predicts with it.
"""

from collections.abc import Iterable
from math import inf
from typing import Final, final

from router.prediction.step_model import StepModel

MOST_OF_TPOT: Final = 0.95
"""Most time of a step with prompts, as a share of a TPOT objective among the requests that decode, where the lengths of
steps are known. Higher leaves no room for the other delays of a token, and has answers occupy KV memory for longer;
lower computes prompts more slowly.
"""
LEAST_OF_TPOT: Final = 0.9
"""The same where the lengths of steps are not known. Higher makes answers late where predictions are poor; lower
computes prompts more slowly there.
"""
LEAST_STEP_SOFTNESS: Final = 0.005
"""Least relative uncertainty of the mean length of steps with prompts. Higher refuses requests whose TPOT the engine
keeps; lower trusts the lengths of steps more exactly than they are kept.
"""
FIRST_STEP_SOFTNESS: Final = 0.1
"""The same before the first step with prompts. Higher refuses the first requests of a new kind of engine; lower takes a
prior for knowledge.
"""
SOFTNESS_OF_STEP_ERROR: Final = 0.25
"""Uncertainty of that mean, as a share of the mean error of single steps, which mostly cancel out. Higher refuses
requests for errors that cancel out; lower takes errors that all steps share for noise.
"""
LEAST_STRETCH: Final = 1.1
"""Length up to which a step with prompts may go in any case, as a multiple of a step that only decodes. Higher delays
answers whose objective decodes alone take nearly all of; lower lets one such answer stop the prompts beside it.
"""
LOST_STRETCH: Final = 2.0
"""The same beside an answer whose objective is no longer than a step that only decodes. Higher delays answers that are
late anyway still more; lower makes prompts late, too.
"""
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
LEAST_CHUNK: Final = 16
"""Prompt tokens that any step may compute. Higher delays decodes beside very long prompts; lower computes such prompts
in more steps.
"""


@final
class StepBound:
    """How long steps with prompts are beside requests that decode, on engines of one kind."""

    __slots__ = ("share", "softness")

    def __init__(self, error: float | None = None) -> None:
        """`error`: mean relative error of the predicted lengths of steps with prompts; None before the first one."""
        self.share = LEAST_OF_TPOT
        """Most time of a step, as a share of a TPOT objective: as much less as predictions are wrong."""
        self.softness = FIRST_STEP_SOFTNESS
        """How uncertain the mean length of the longest steps is, as a share of it."""
        if error is not None:
            self.share = min(MOST_OF_TPOT, max(LEAST_OF_TPOT, 1.0 - error))
            self.softness = max(LEAST_STEP_SOFTNESS, SOFTNESS_OF_STEP_ERROR * error)

    def longest_step_s(self, decode_s: float, tpot_s: float) -> float:
        """Most seconds of a step with prompts beside requests whose step alone takes `decode_s` seconds. `tpot_s`: the
        objective that binds, in seconds (`binding_tpot_s`). Long steps of a mixture of experts have the same bound on
        average (`long_steps`).

        Beyond the share that steps may take of it, an objective is the less likely to be kept the closer decodes alone
        come to it, and the less it bounds. So a small error of a predicted step changes the bound by little.
        """
        if tpot_s <= decode_s:
            return LOST_STRETCH * decode_s
        lost = max(0.0, (decode_s / tpot_s - self.share) / (1.0 - self.share))
        return max(self.share * tpot_s, (LEAST_STRETCH + (LOST_STRETCH - LEAST_STRETCH) * lost) * decode_s)

    def binding_tpot_s(self, objectives: Iterable[float], decode_s: float) -> float:
        """The TPOT objective that bounds steps most, where a step without prompts takes `decode_s` seconds. inf without
        any.
        """
        binding_s = longest_s = inf
        for tpot_s in objectives:
            if (seconds := self.longest_step_s(decode_s, tpot_s)) < longest_s:
                binding_s, longest_s = tpot_s, seconds
        return binding_s


def chunk_tokens(times: StepModel, num_decoding: float, seconds: float, context_tokens: float) -> int:
    """Most prompt tokens of a step with one prompt, beside `num_decoding` requests that decode.

    `seconds`: by which the prompt may lengthen the step; `context_tokens`: tokens of the prompt that come before the
    chunk, to which it attends.
    """
    return max(LEAST_CHUNK, int(times.tokens_within(seconds, num_decoding, context_tokens)))


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


@final
class StepRoom:
    """What a step has left for prompts, which take their chunks of it in turn: tokens, and time beside decodes. A
    prompt with a long context takes more time for each token, so one number of tokens for all of them would not bound
    a step.
    """

    __slots__ = ("_least", "_num_tokens", "_seconds", "_times", "num_left", "saves_time")

    def __init__(
        self,
        times: StepModel,
        num_left: int,
        num_decoding: int = 0,
        seconds: float = inf,
        least: int = LEAST_CHUNK,
        *,
        saves_time: bool = False,
    ) -> None:
        """`num_left`: most prompt tokens, of all prompts together; `seconds`: by which prompts may lengthen the step;
        `least`: tokens of prompts that the step may compute in any case; `saves_time`: for a longer step, though
        prompts wait, so that this one has no room for any.
        """
        self._times = times
        self._num_tokens = float(num_decoding)
        self._seconds = seconds
        self._least = least
        self.saves_time = saves_time
        self.num_left = num_left

    @property
    def is_bounded(self) -> bool:
        """Whether the time of the step is bounded."""
        return self._seconds < inf

    def tokens(self, context_tokens: float) -> int:
        """Most tokens for the next prompt. `context_tokens`: tokens of this prompt that come before them."""
        if not self.is_bounded:
            return self.num_left
        most = max(self._least, int(self._times.tokens_within(self._seconds, self._num_tokens, context_tokens)))
        return min(most, self.num_left)

    def take(self, num_new: int, context_tokens: float) -> None:
        """The next prompt has `num_new` tokens of the step."""
        self._seconds -= self._times.added_s(num_new, self._num_tokens, context_tokens)
        self._num_tokens += num_new
        self.num_left -= num_new
        self._least = max(0, self._least - num_new)
        if self.is_bounded and not self._least and self.tokens(0) < LEAST_CHUNK:
            self.num_left = 0  # too little for another prompt to begin, which would hold its KV blocks from then on
