"""How many prompt tokens a step may compute beside requests that decode. Pure.

Every request that decodes waits for the whole step. So a step with prompts may take what the TPOT objectives of these
requests allow, and the more tokens of prompts it computes, the less often the decodes' own part of a step is paid for
them. An objective may be shorter than a step without any prompts. It is lost then, whatever the step computes, so it
bounds steps less. Engines choose their steps by this rule (cluster/engine_scheduler/deadline_scheduler.py), and the
Scheduler predicts with it.
"""

from collections.abc import Iterable
from math import inf
from typing import Final

from router.prediction.step_model import StepModel

STEP_SHARE: Final = 0.9
"""Most time of a step with prompts, as a share of a TPOT objective among the requests that decode. Higher
leaves no room for the other delays of a token, and has answers occupy KV memory for longer; lower computes prompts more
slowly.
"""
LEAST_STRETCH: Final = 1.25
"""Length up to which a step with prompts may go in any case, as a multiple of a step that only decodes. Higher delays
answers whose objective decodes alone take nearly all of; lower lets one such answer stop the prompts beside it.
"""
LOST_STRETCH: Final = 2.0
"""The same beside an answer whose objective is shorter than a step that only decodes. Higher delays answers that are
late anyway still more; lower makes prompts late, too.
"""
LEAST_CHUNK: Final = 16
"""Prompt tokens that any step may compute. Higher delays decodes beside very long prompts; lower computes such prompts
in more steps.
"""


def chunk_tokens(times: StepModel, num_decoding: float, decode_s: float, tpot_s: float, context_tokens: float) -> int:
    """Most prompt tokens of a step beside `num_decoding` requests whose step alone takes `decode_s` seconds.

    `tpot_s`: the objective that binds, in seconds (`binding_tpot_s`); `context_tokens`: tokens of the prompt that come
    before the chunk, to which it attends.
    """
    seconds = longest_step_s(decode_s, tpot_s)
    return max(LEAST_CHUNK, int(times.tokens_within(seconds - decode_s, num_decoding, context_tokens)))


def longest_step_s(decode_s: float, tpot_s: float) -> float:
    """Most seconds of a step with prompts beside requests whose step alone takes `decode_s` seconds. `tpot_s`: the
    objective that binds, in seconds (`binding_tpot_s`).
    """
    return LOST_STRETCH * decode_s if tpot_s <= decode_s else max(STEP_SHARE * tpot_s, LEAST_STRETCH * decode_s)


def binding_tpot_s(objectives: Iterable[float], decode_s: float) -> float:
    """The TPOT objective that bounds steps most, where a step without prompts takes `decode_s` seconds. inf without
    any.
    """
    binding_s = longest_s = inf
    for tpot_s in objectives:
        if (seconds := longest_step_s(decode_s, tpot_s)) < longest_s:
            binding_s, longest_s = tpot_s, seconds
    return binding_s
