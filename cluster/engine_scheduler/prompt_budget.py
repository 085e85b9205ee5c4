"""How many prompt tokens the next step of an engine may compute, by what its own steps have taken so far. Pure.

The engine's core measures its steps for the Scheduler anyway (cluster/engine_core/step_samples.py). It learns from them
as the Scheduler does, from the same prior (router/prediction/learned_latency.py), and needs no message for it. The
Scheduler learns from all engines of a kind, and this from one.
"""

from typing import Any, final

import msgspec

from cluster.messages.reports import StepSample
from router.prediction.learned_latency import LatencyModel
from router.prediction.step_chunk import LEAST_CHUNK
from router.prediction.step_model import StepModel
from router.prediction.step_pacer import StepPacer, Wanted
from router.prediction.step_room import StepRoom


class Decodes(msgspec.Struct, frozen=True):
    """The requests that get a token in a step."""

    num_requests: int = 0
    context_tokens: int = 0
    """Of all of them together."""
    objectives_s: frozenset[float] = frozenset()
    """Their TPOT objectives. Empty if none of them has one."""


@final
class PromptBudget:
    def __init__(self, config: Any, prior: StepModel | None) -> None:
        """`config`: the engine's VllmConfig. `prior`: None for a kind of engine without figures."""
        scheduling = config.scheduler_config
        self._most = int(scheduling.max_num_scheduled_tokens or scheduling.max_num_batched_tokens)
        self._least = least_chunk(config) if scheduling.enable_chunked_prefill else self._most
        self._model = LatencyModel(prior)
        self._pacer = StepPacer()
        self._is_warm = False

    @property
    def times(self) -> StepModel:
        return self._model.times

    def observe(self, sample: StepSample) -> None:
        """Learn from a step. An engine compiles during its first step, which is therefore ignored."""
        if self._is_warm:
            self._model.observe(sample)
        self._is_warm = True

    def planned(self, now: float, *, is_idle: bool) -> None:
        """The engine has planned a step. `is_idle`: no request runs."""
        if is_idle:
            self._pacer.forget(now)
        else:
            self._pacer.ran()

    def beside(self, decodes: Decodes, most: int, wanted: Wanted, now: float) -> StepRoom:
        """What a step has for prompts beside these requests. `most`: tokens that they leave of it; `now`: in
        seconds, by a clock that never goes back.
        """
        if not decodes.objectives_s or self._least >= self._most:
            self._pacer.forget(now)
            return StepRoom(self.times, most)
        return self._pacer.room(
            self._model,
            decodes.num_requests,
            decodes.context_tokens,
            decodes.objectives_s,
            wanted,
            most,
            now,
            max(LEAST_CHUNK, self._least),
        )

    def in_time_of(self, num_tokens: int, context: int) -> int:
        """Prompt tokens after `context` others that take as long as the first `num_tokens` of a prompt."""
        times = self.times
        seconds = times.added_s(num_tokens, times.knee_tokens, 0)
        return min(num_tokens, max(self._least, int(times.tokens_within(seconds, times.knee_tokens, context))))

    @property
    def nearly_free(self) -> int:
        """Prompt tokens that are computed while the weights are read."""
        return min(max(int(self.times.knee_tokens), self._least), self._most)


def least_chunk(config: Any) -> int:
    """Fewest prompt tokens with which every prompt goes on beside any number of decodes, for the engine with this
    VllmConfig. Some models take no smaller part of a prompt than a KV block, or than what their draft looks ahead.
    """
    model, cache = config.model_config, config.cache_config
    least = 1 + max(config.num_speculative_tokens, config.num_prefill_lookahead_tokens)
    if (model.is_hybrid or model.is_attention_free) and cache.mamba_cache_mode == "align":
        least = max(least, cache.block_size)
    return int(least)
