"""An engine's executor that keeps a pace. Engines load it by name: `distributed_executor_backend`.

It is vLLM's own executor for one process. A step that computes tokens lasts at least the pace, as if a larger model
had computed it; the time that is left is slept, so that it is free for everything that is not an engine.
"""

import os
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import ModelRunnerOutput

from bench.fronts.pace import PACE_FILE_VARIABLE, Pace


class PacedExecutor(UniProcExecutor):
    def _init_executor(self) -> None:
        self._pace = Pace(Path(os.environ[PACE_FILE_VARIABLE]))
        self._step_ends_at = 0.0
        super()._init_executor()

    def execute_model(
        self, scheduler_output: SchedulerOutput, non_block: bool = False
    ) -> ModelRunnerOutput | Future[ModelRunnerOutput | None] | None:
        self._step_ends_at = time.perf_counter() + self._pace.step_s(scheduler_output.total_num_scheduled_tokens)
        return super().execute_model(scheduler_output, non_block)

    def sample_tokens(self, grammar_output: GrammarOutput | None, non_block: bool = False) -> Any:
        """The end of a step. Steps that only move KV blocks have no tokens to sample, and keep no pace."""
        output = super().sample_tokens(grammar_output, non_block)
        time.sleep(max(0.0, self._step_ends_at - time.perf_counter()))
        return output
