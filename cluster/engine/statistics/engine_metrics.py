"""vLLM's own metrics, with what the token pipe brings.

vLLM observes the tokens of an iteration once for all outputs that its way has brought together. The tokens of the steps
that took the pipe come to it all at once, a few times a second (cluster/engine/token_tap.py), and would be one huge
iteration. So each of these steps is observed alone. The last of them mostly is the step whose outputs took vLLM's way,
and counts with these.
"""

from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

PIPED_STEPS = "baton_piped_steps"
"""Attribute of vLLM's statistics: the tokens of each step that took the pipe, in order, which the statistics have in
sum.
"""


class EngineMetrics(PrometheusStatLogger):
    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        alone: list[int] = getattr(iteration_stats, PIPED_STEPS, [])[:-1]
        if iteration_stats is None or not alone:
            super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
            return
        num_alone = sum(alone)
        iteration_stats.num_generation_tokens -= num_alone
        super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
        iteration_stats.num_generation_tokens += num_alone  # other loggers read it, too
        self.counter_generation_tokens[engine_idx].inc(num_alone)
        for num_tokens in alone:
            self.histogram_iteration_tokens[engine_idx].observe(num_tokens)
