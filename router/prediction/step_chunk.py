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
        average (router/prediction/long_steps.py).

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
