"""vLLM's scheduler with the token pipe (cluster/engine_core/token_pipe.py): most outputs of a step go to the worker
through the pipe, and vLLM's own way carries what is left.

What takes which way:

1. The first output of a sequence takes vLLM's way. It has the statistics of the prompt.
2. All later outputs of a sequence take the pipe if `is_piped` says so of its request. An output that has more than
   tokens (the last one, or one with an event) also takes vLLM's way, without its tokens, for vLLM's bookkeeping.
3. All outputs of other requests take vLLM's way.

So within a sequence the pipe alone has the order of all outputs but the first, and each token takes one way only.

vLLM would send statistics with each step. They go along when the numbers of requests change, when a part of the engine
has something to tell, and otherwise once in STATS_INTERVAL_S, with one output at least: with outputs alone vLLM makes
the statistics in which cluster/engine/token_tap.py tells it of the tokens that took the pipe. A step without anything
for vLLM's way wakes nobody there.

The first output of a sequence also carries the steps that computed its prompt (cluster/engine_core/prompt_steps.py).
"""

from collections.abc import Callable
from time import monotonic
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.metrics.perf import PerfStats
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput

from cluster.engine_core.prompt_steps import PromptStepLog
from cluster.engine_core.step_samples import StepSampler
from cluster.engine_core.token_pipe import PipedOutput, PipedStep, TokenPipe, is_piped

STATS_INTERVAL_S = 0.25
"""Most seconds between two statistics of an engine that steps. Longer makes the KV cache usage in a worker's reports
older; shorter costs the worker's process CPU time, 0.3 to 0.5 ms each.
"""
LEAST_FORGOTTEN = 1024
"""Sequences that were aborted, in number, before the set of piped sequences is cleared of them. More takes memory;
fewer clears it more often.
"""


class PipingScheduler(Scheduler):
    def __init__(
        self, *arguments: Any, pipe: TokenPipe | None = None, clock: Callable[[], float] = monotonic, **named: Any
    ) -> None:
        """Without a `pipe`, everything takes vLLM's way."""
        super().__init__(*arguments, **named)
        self._clock = clock
        self._pipe = pipe
        self._piped: set[str] = set()
        """Sequences that have had their first output and take the pipe. Those that were aborted may still be here."""
        self._told: tuple[float, tuple[int, int]] | None = None
        """Time of the last statistics, and the numbers of requests in them."""
        self._perf: PerfStats | None = None
        """Estimated work of the steps since the last statistics, if vLLM estimates it."""
        self._prompts = PromptStepLog()
        self.steps: StepSampler | None = None
        """Takes the time of the engine's steps. Without it, no prompt's steps are kept."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        prompts = [] if self.steps is None else self._prompts.computing(scheduler_output, self._is_begun)
        answers = super().update_from_output(scheduler_output, model_runner_output)
        if self.steps is not None and prompts:
            self._prompts.stepped(prompts, scheduler_output, self.steps.last_step)
            self._prompts.keep(self.requests)
        if self._pipe is None:
            return answers
        piped: list[PipedOutput] = []
        for answer in answers.values():
            outputs = [output for output in answer.outputs if self._needs_vllm(output, piped, scheduler_output)]
            if answer.scheduler_stats is not None and not outputs:
                outputs = answer.outputs[:1]
            answer.outputs = outputs
        if piped:
            self._pipe.send(PipedStep(self._clock(), piped))
        return {client: answer for client, answer in answers.items() if _says_something(answer)}

    def make_stats(
        self,
        spec_decoding_stats: Any = None,
        kv_connector_stats: KVConnectorStats | None = None,
        cudagraph_stats: Any = None,
        perf_stats: PerfStats | None = None,
        **named: Any,
    ) -> SchedulerStats | None:
        counts, now = self.get_request_counts(), self._clock()
        given = (spec_decoding_stats, kv_connector_stats, cudagraph_stats, *named.values())
        self._perf = _together(self._perf, perf_stats)
        if self._pipe is not None and self._told is not None and not any(each is not None for each in given):
            told_at, told = self._told
            if counts == told and now - told_at < STATS_INTERVAL_S:
                return None
        self._told = now, counts
        perf_stats, self._perf = self._perf, None
        return super().make_stats(spec_decoding_stats, kv_connector_stats, cudagraph_stats, perf_stats, **named)

    def _needs_vllm(self, output: EngineCoreOutput, piped: list[PipedOutput], step: SchedulerOutput) -> bool:
        """Whether an output of the step must take vLLM's way. One that takes the pipe is added to `piped`."""
        if output.request_id not in self._piped:
            if output.prefill_stats is not None and self.steps is not None:
                output.trace_headers = self._prompts.first_output(output.request_id, step, self.steps.last_step)
            if output.finish_reason is None:
                self._begin(output.request_id)
            return True
        reason = output.finish_reason
        piped.append(PipedOutput(output.request_id, output.new_token_ids, reason, output.stop_reason))
        output.new_token_ids = []
        if reason is not None:
            self._piped.discard(output.request_id)
        return reason is not None or output.events is not None or output.prefill_stats is not None

    def _is_begun(self, request_id: str) -> bool:
        """Whether a request has had its first output, or is gone."""
        request = self.requests.get(request_id)
        return request is None or request.num_output_tokens > 0

    def _begin(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is not None and is_piped(request.sampling_params):
            if len(self._piped) > len(self.requests) + LEAST_FORGOTTEN:
                self._piped &= self.requests.keys()
            self._piped.add(request_id)


def _together(before: PerfStats | None, step: PerfStats | None) -> PerfStats | None:
    """The estimated work of two times. The figures for vLLM's debugging are of the last step that has them."""
    if before is None or step is None:
        return step or before
    return PerfStats(
        before.num_flops_per_gpu + step.num_flops_per_gpu,
        before.num_read_bytes_per_gpu + step.num_read_bytes_per_gpu,
        before.num_write_bytes_per_gpu + step.num_write_bytes_per_gpu,
        step.debug_stats or before.debug_stats,
    )


def _says_something(answer: EngineCoreOutputs) -> bool:
    return bool(answer.outputs or answer.finished_requests) or answer.scheduler_stats is not None
