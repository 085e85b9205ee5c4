"""Which way each output of a step takes, with vLLM's scheduler and without a model."""

from typing import Any

import pytest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.perf import PerfStats
from vllm.v1.request import RequestStatus

from cluster.engine_core.prompt_steps import steps_in
from cluster.engine_core.step_samples import StepSampler
from cluster.engine_core.token_pipe import PipedOutput, PipedStep
from cluster.engine_scheduler import piping_scheduler
from cluster.engine_scheduler.deadline_scheduler import AsyncDeadlineScheduler, DeadlineScheduler
from cluster.engine_scheduler.piping_scheduler import STATS_INTERVAL_S
from tests.component.cluster.engine_scheduler.stepping import TIMES, Stepping

KINDS = pytest.mark.parametrize("kind", [DeadlineScheduler, AsyncDeadlineScheduler])
PLAIN = {"detokenize": False}
PROMPT, ANSWER = 8, 40
"""Tokens of a prompt, and of an answer that takes longer than STATS_INTERVAL_S."""


class Pipe:
    def __init__(self) -> None:
        self.steps: list[PipedStep] = []

    def send(self, step: PipedStep) -> None:
        self.steps.append(step)

    def of(self, name: str) -> list[PipedOutput]:
        return [output for step in self.steps for output in step.outputs if output.request_id == name]


def an_engine(kind: Any = DeadlineScheduler) -> tuple[Stepping, Pipe]:
    pipe = Pipe()
    return Stepping(kind=kind, pipe=pipe), pipe


def on_vllms_way(engine: Stepping, name: str) -> list[tuple[int, FinishReason | None]]:
    """The number of tokens of each output there, and its finish reason."""
    outputs = [output for answer in engine.answers for output in answer.outputs if output.request_id == name]
    return [(len(output.new_token_ids), output.finish_reason) for output in outputs]


@KINDS
def test_each_token_takes_one_way_and_the_end_takes_both(kind: Any) -> None:
    engine, pipe = an_engine(kind)
    engine.add("a", PROMPT, num_output=3, **PLAIN)
    engine.until_done()
    assert on_vllms_way(engine, "a") == [(1, None), (0, FinishReason.LENGTH)]
    assert [(len(output.token_ids), output.finish_reason) for output in pipe.of("a")] == [
        (1, None),
        (1, FinishReason.LENGTH),
    ]


@KINDS
def test_answer_of_one_token_takes_vllms_way_alone(kind: Any) -> None:
    engine, pipe = an_engine(kind)
    engine.add("a", PROMPT, num_output=1, **PLAIN)
    engine.until_done()
    assert on_vllms_way(engine, "a") == [(1, FinishReason.LENGTH)]
    assert pipe.steps == []


@pytest.mark.parametrize("sampling", [{"stop": ["x"]}, {**PLAIN, "logprobs": 1}], ids=["stop string", "logprobs"])
def test_output_that_vllm_must_read_takes_its_way_alone(sampling: dict[str, Any]) -> None:
    engine, pipe = an_engine()
    engine.add("a", PROMPT, num_output=3, **sampling)
    engine.until_done()
    assert on_vllms_way(engine, "a") == [(1, None), (1, None), (1, FinishReason.LENGTH)]
    assert pipe.steps == []


@KINDS
def test_steps_that_only_decode_wake_vllms_way_once_in_the_interval_of_statistics(kind: Any) -> None:
    engine, pipe = an_engine(kind)
    engine.add("a", PROMPT, num_output=ANSWER, **PLAIN)
    engine.until_done()
    assert len(pipe.of("a")) == ANSWER - 1
    seconds = sum(len(engine.steps) * [TIMES.decode_s(1, PROMPT)])
    num_beside = len(engine.answers) - 2  # the first output and the last one
    assert 1 <= num_beside <= seconds / STATS_INTERVAL_S + 1
    assert all(answer.outputs for answer in engine.answers), "vLLM makes statistics of tokens with outputs alone"


def test_statistics_go_with_the_step_that_changes_the_number_of_requests() -> None:
    engine, _ = an_engine()
    engine.add("a", PROMPT, num_output=ANSWER, **PLAIN)
    engine.step()
    engine.add("b", PROMPT, num_output=2, **PLAIN)
    engine.step()
    engine.step()
    running = [answer.scheduler_stats.num_running_reqs for answer in engine.answers if answer.scheduler_stats]
    assert running == [1, 2, 1]


def test_estimated_work_of_steps_without_statistics_comes_with_the_next_ones() -> None:
    engine, _ = an_engine()
    engine.scheduler.perf_metrics = StepsOfOneFlop()
    engine.add("a", PROMPT, num_output=ANSWER, **PLAIN)
    engine.until_done()
    told = [answer.scheduler_stats.perf_stats for answer in engine.answers if answer.scheduler_stats]
    assert 2 <= len(told) < len(engine.steps) / 2, "an estimate alone is no reason for statistics"
    totals = [(each.num_flops_per_gpu, each.num_read_bytes_per_gpu, each.num_write_bytes_per_gpu) for each in told]
    assert [sum(column) for column in zip(*totals, strict=True)] == [each * len(engine.steps) for each in (1, 2, 3)]


class StepsOfOneFlop:
    """In place of vLLM's ModelMetrics."""

    def is_enabled(self) -> bool:
        return True

    def get_step_perf_stats_per_gpu(self, step: SchedulerOutput) -> PerfStats:
        return PerfStats(1, 2, 3)


def test_aborted_requests_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piping_scheduler, "LEAST_FORGOTTEN", 4)
    engine, _ = an_engine()
    for number in range(20):
        engine.add(f"{number}", PROMPT, num_output=ANSWER, **PLAIN)
        engine.step()
        engine.scheduler.finish_requests(f"{number}", RequestStatus.FINISHED_ABORTED)
        engine.step() if engine.scheduler.has_requests() else None
    assert len(engine.scheduler._piped) <= 4 + 2


@KINDS
def test_first_output_says_in_which_steps_its_prompt_was_computed(kind: Any) -> None:
    engine, _ = an_engine(kind)
    engine.scheduler.steps = StepSampler()
    engine.add("short", PROMPT, num_output=ANSWER, **PLAIN)
    engine.add("long", 2000, num_output=3, **PLAIN)
    engine.until_done()
    outputs = [output for answer in engine.answers for output in answer.outputs]
    told = {output.request_id: steps_in(output.trace_headers) for output in outputs if output.trace_headers}
    assert [step.num_tokens for step in told["short"]] == [PROMPT]
    assert [step.num_tokens for step in told["long"]] == [
        step["long"] for step in engine.steps if step.get("long", 0) > 1
    ]
    assert sum(step.num_tokens for step in told["long"]) == 2000
    assert sum(bool(output.trace_headers) for output in outputs) == 2
