"""How many prompt tokens a step may compute beside requests that decode. Pure.

Every request that decodes waits for the whole step. So the step with prompts may take what the tightest TPOT objective
among these requests allows, and the more tokens of prompts it computes, the less often the decodes' own part of a step
is paid for them. Engines choose their steps by this rule (cluster/engine_scheduler/deadline_scheduler.py), and the
Scheduler predicts with it.
"""

from typing import Final

from router.prediction.step_model import StepModel

STEP_SHARE: Final = 0.8
"""Most time of a step with prompts, as a share of the tightest TPOT objective among the requests that decode. Higher
leaves no room for the other delays of a token, and has answers occupy KV memory for longer; lower computes prompts more
slowly.
"""
LEAST_STRETCH: Final = 1.25
"""Length up to which any step with prompts may go, as a multiple of a step that only decodes. Higher delays decodes
whose objective is missed already; lower has prompts wait for as long as decodes alone take the whole objective.
"""
LEAST_CHUNK: Final = 16
"""Prompt tokens that any step may compute. Higher delays decodes beside very long prompts; lower computes such prompts
in more steps.
"""


def chunk_tokens(times: StepModel, num_decoding: float, decode_s: float, tpot_s: float, context_tokens: float) -> int:
    """Most prompt tokens of a step beside `num_decoding` requests whose step alone takes `decode_s` seconds.

    `tpot_s`: the tightest TPOT objective among them, in seconds; `context_tokens`: tokens of the prompt that come
    before the chunk, to which it attends.
    """
    seconds = max(STEP_SHARE * tpot_s, LEAST_STRETCH * decode_s)
    return max(LEAST_CHUNK, int(times.tokens_within(seconds - decode_s, num_decoding, context_tokens)))
