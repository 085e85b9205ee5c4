"""The tap between an engine's raw outputs and vLLM's output processor."""

from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine import FinishReason as EngineFinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics.stats import IterationStats, PrefillStats

from cluster.engine.statistics.engine_metrics import PIPED_STEPS
from cluster.engine.token_tap import ITL_STEPS, RunningRequest, TapHooks, TokenTap
from cluster.engine_core.prompt_steps import STEPS_HEADER, PromptStep
from cluster.engine_core.token_pipe import PipedOutput, PipedStep
from cluster.errors import ConstraintFailed, ErrorMessage, InvalidRequest, Overloaded, WorkerFailed
from cluster.messages.generation import FinishReason, PromptTokenSources, TokenDelta
from cluster.messages.ids import WorkerId
from cluster.rpc.connection import ConnectionLost
from cluster.step_stream.stage_log import StageLog
from kvtransfer.handoff import PREFILL_REQUEST, KVHandoff

NUM_TOKENS = 100


HANDOFF = KVHandoff(worker=WorkerId("p"), params={"do_remote_prefill": True, "remote_num_tokens": 4})


class Sink:
    def __init__(self) -> None:
        self.deltas: list[TokenDelta] = []
        self.error: BaseException | None = None
        self.stages = StageLog(0.0)

    def put(self, delta: TokenDelta) -> None:
        self.deltas.append(delta)

    def fail(self, error: BaseException) -> None:
        self.error = error

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]


class BrokenSink(Sink):
    """Takes a few deltas, and then raises, whatever it is given."""

    def __init__(self, num_taken: int) -> None:
        super().__init__()
        self._num_left = num_taken

    def put(self, delta: TokenDelta) -> None:
        self._num_left -= 1
        if self._num_left < 0:
            raise ConnectionLost("the peer is gone")
        super().put(delta)

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        raise ConnectionLost("the peer is gone")


class Tapped:
    """A tap with requests, driven step by step."""

    def __init__(self) -> None:
        self.prompts: list[PromptTokenSources] = []
        self.orphans: list[str] = []
        self.num_steps = 0
        self.step_error: Exception | None = None
        self.tap = TokenTap(OutputProcessor(None, log_stats=True))
        self.tap.attach(
            TapHooks(
                on_prompt=self.prompts.append,
                on_step=self._on_step,
                on_orphan=self.orphans.append,
                translated=lambda error: RuntimeError(str(error)),
            )
        )
        self.num_generated = 0
        self.finished: list[int] = []
        self.num_observed = 0
        self.piped_steps: list[int] = []

    def add(
        self, name: str, kv_transfer_params: dict[str, object] | None = None, sink: Sink | None = None, **sampling: Any
    ) -> tuple[Sink, RunningRequest]:
        sink = sink or Sink()
        params = SamplingParams(
            max_tokens=NUM_TOKENS, output_kind=RequestOutputKind.FINAL_ONLY, detokenize=False, **sampling
        )
        params.extra_args = {"kv_transfer_params": kv_transfer_params} if kv_transfer_params else None
        running = self.tap.open(name, params, sink)
        request = EngineCoreRequest(
            request_id=f"{name}-internal",
            external_req_id=name,
            prompt_token_ids=[1, 2, 3],
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        collector = RequestOutputCollector(RequestOutputKind.FINAL_ONLY, name)
        self.tap.add_request(request, None, None, 0, collector)
        return sink, running

    def step(self, *outputs: EngineCoreOutput) -> None:
        stats = IterationStats()
        self.tap.process_outputs(list(outputs), float(self.num_steps), stats)
        self.num_generated += stats.num_generation_tokens
        self.piped_steps = getattr(stats, PIPED_STEPS)
        self.num_observed += len(stats.inter_token_latencies_iter)
        self.finished += [request.num_generation_tokens for request in stats.finished_requests]

    def pipe(self, *outputs: PipedOutput) -> None:
        self.tap.take_piped(PipedStep(float(self.num_steps), list(outputs)))

    def _on_step(self) -> None:
        self.num_steps += 1
        if self.step_error is not None:
            raise self.step_error


def output(name: str, token: int, **fields: object) -> EngineCoreOutput:
    return EngineCoreOutput(f"{name}-internal", [token], **fields)


def first(name: str) -> EngineCoreOutput:
    stats = PrefillStats(num_prompt_tokens=3, num_computed_tokens=1, num_cached_tokens=2, num_local_cached_tokens=2)
    return output(name, 0, prefill_stats=stats)


def piped(name: str, token: int, finish_reason: EngineFinishReason | None = None) -> PipedOutput:
    return PipedOutput(f"{name}-internal", [token], finish_reason)


def copy(name: str, **fields: object) -> EngineCoreOutput:
    """What takes vLLM's way of an output whose tokens take the pipe."""
    return EngineCoreOutput(f"{name}-internal", [], **fields)


LAST = EngineFinishReason.LENGTH


@pytest.mark.parametrize("is_copy_first", [False, True], ids=["pipe first", "copy first"])
def test_every_token_reaches_its_sink_and_is_counted_once(is_copy_first: bool) -> None:
    tapped = Tapped()
    sinks = {name: tapped.add(name)[0] for name in ("a", "b")}
    tapped.step(*map(first, sinks))
    for token in range(1, NUM_TOKENS - 1):
        tapped.pipe(*(piped(name, token) for name in sinks))
    in_pipe = [piped(name, NUM_TOKENS - 1, LAST) for name in sinks]
    copies = [copy(name, finish_reason=LAST) for name in sinks]
    if is_copy_first:
        tapped.step(*copies)
    tapped.pipe(*in_pipe)
    if not is_copy_first:
        tapped.step(*copies)
    tapped.step(first("of another worker"))
    for sink in sinks.values():
        assert sink.token_ids == list(range(NUM_TOKENS))
        assert sink.deltas[0].prompt_sources == PromptTokenSources(1, 2, 0)
        assert [delta.finish_reason for delta in sink.deltas[-2:]] == [None, FinishReason.LENGTH]
    assert tapped.num_generated == 2 * NUM_TOKENS
    assert tapped.finished == [NUM_TOKENS - is_copy_first] * 2, "vLLM's own count misses what comes after its end"
    assert tapped.tap.num_running == 0


def test_first_delta_says_what_the_engine_did_until_then_and_the_last_one_how_many_steps_followed() -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a")
    step = PromptStep(2.0, 3.0, 100, 4, 110)
    first_output = first("a")
    first_output.trace_headers = {STEPS_HEADER: str(msgspec.json.encode([step]), "ascii")}
    first_output.events = [
        EngineCoreEvent(EngineCoreEventType.QUEUED, 0.5),
        EngineCoreEvent(EngineCoreEventType.SCHEDULED, 0.75),
        EngineCoreEvent(EngineCoreEventType.PREEMPTED, 1.0),
        EngineCoreEvent(EngineCoreEventType.SCHEDULED, 1.75),
    ]
    tapped.step(first_output)
    for token in range(1, 6):
        tapped.pipe(piped("a", token, LAST if token == 5 else None))
    stages = sink.deltas[0].stages or ()
    queued = [("engine_queue", 0.5, 0.75), ("engine_queue", 1.0, 1.75)]
    *inside, output = [(stage.name, stage.start_s, stage.end_s) for stage in stages]
    assert inside == [("receive", 0.0, 0.5), *queued, ("prefill", 2.0, 3.0)]
    assert output[:2] == ("output", 3.0)
    assert stages[3].notes == {"tokens": 100, "batch_requests": 4, "batch_tokens": 110}
    assert [delta.stages for delta in sink.deltas[1:]] == [None] * 5
    assert [delta.num_steps for delta in sink.deltas] == [0, 0, 0, 0, 0, 5]


@given(num_tokens=st.integers(2, 12), order=st.randoms(use_true_random=False))
def test_tokens_stay_in_order_however_the_two_ways_overtake_each_other(num_tokens: int, order: Random) -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a")
    tokens = [piped("a", token, LAST if token == num_tokens - 1 else None) for token in range(1, num_tokens)]
    in_pipe = [partial(tapped.pipe, token) for token in tokens]
    on_vllms_way = [partial(tapped.step, each) for each in (first("a"), copy("a"), copy("a", finish_reason=LAST))]
    while in_pipe or on_vllms_way:
        way = in_pipe if in_pipe and (not on_vllms_way or order.random() < 0.5) else on_vllms_way
        way.pop(0)()
    assert sink.token_ids == list(range(num_tokens))
    assert [delta.finish_reason for delta in sink.deltas] == [None] * (num_tokens - 1) + [FinishReason.LENGTH]
    assert tapped.tap.num_running == 0


def test_statistics_say_how_many_tokens_each_step_in_the_pipe_had() -> None:
    tapped = Tapped()
    for name in ("a", "b"):
        tapped.add(name)
        tapped.step(first(name))
    assert tapped.piped_steps == []
    tapped.pipe(piped("a", 1), piped("b", 1))
    tapped.pipe(piped("a", 2))
    tapped.pipe(piped("unknown", 2))
    tapped.step(copy("a", finish_reason=LAST))
    assert tapped.piped_steps == [2, 1]
    tapped.step(copy("b", finish_reason=LAST))
    assert tapped.piped_steps == []


def test_tokens_that_overtake_the_first_one_in_the_pipe_wait_for_it() -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a")
    tapped.pipe(piped("a", 1))
    tapped.pipe(piped("a", 2, LAST))
    assert sink.deltas == []
    tapped.step(first("a"))
    assert (sink.token_ids, sink.deltas[-1].finish_reason) == ([0, 1, 2], FinishReason.LENGTH)
    assert tapped.tap.num_running == 0


def test_request_that_the_engine_ends_before_its_first_token_ends() -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a")
    tapped.step(copy("a", finish_reason=EngineFinishReason.ERROR))
    assert [delta.finish_reason for delta in sink.deltas] == [FinishReason.ERROR]
    assert tapped.tap.num_running == 0


def test_request_with_log_probabilities_gets_all_its_tokens_on_vllms_way() -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a", logprobs=1)
    tapped.step(first("a"))
    tapped.step(output("a", 1))
    tapped.step(output("a", 2, finish_reason=LAST))
    assert (sink.token_ids, tapped.num_generated, tapped.finished) == ([0, 1, 2], 3, [3])


@pytest.mark.parametrize(
    ("kv_transfer_params", "sources"),
    [
        (None, PromptTokenSources(computed=1, local=2, pulled=0, offloaded=4)),
        (PREFILL_REQUEST, PromptTokenSources(computed=1, local=2, pulled=0, offloaded=4)),
        (HANDOFF.to_engine(pull_deadline=0.0), PromptTokenSources(computed=1, local=2, pulled=4)),
    ],
    ids=["whole request", "prefill", "handoff"],
)
def test_external_tokens_are_pulled_with_a_handoff_and_else_from_the_tiers(
    kv_transfer_params: dict[str, Any] | None, sources: PromptTokenSources
) -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a", kv_transfer_params)
    stats = PrefillStats(num_computed_tokens=1, num_local_cached_tokens=2, num_external_cached_tokens=4)
    tapped.step(output("a", 0, prefill_stats=stats))
    assert [delta.prompt_sources for delta in sink.deltas] == tapped.prompts == [sources]
    assert sources.cached == 6


def test_inter_token_latency_is_observed_in_a_sample_of_the_steps() -> None:
    tapped = Tapped()
    tapped.add("a")
    tapped.step(first("a"))
    for token in range(10 * ITL_STEPS):
        tapped.pipe(piped("a", token))
    tapped.step(copy("a"))
    assert tapped.num_observed == 10


async def test_tap_is_idle_when_its_last_request_is_forgotten() -> None:
    tapped = Tapped()
    sink, running = tapped.add("a")
    tapped.step(first("a"))
    tapped.tap.close(running)
    tapped.pipe(piped("a", 1))
    assert (sink.token_ids, tapped.tap.find("a")) == ([0], None)
    await tapped.tap.idle()


def test_dead_engine_fails_all_that_run_in_our_terms() -> None:
    tapped = Tapped()
    sinks = [tapped.add(name)[0] for name in ("a", "b")]
    tapped.tap.propagate_error(ValueError("out of memory"))
    assert [str(sink.error) for sink in sinks] == ["out of memory"] * 2
    assert all(isinstance(sink.error, RuntimeError) for sink in sinks)
    assert tapped.tap.num_running == 0


@pytest.mark.parametrize("num_taken", [0, 1, 2], ids=["first", "through the pipe", "last"])
def test_reader_that_breaks_loses_its_own_request_alone(num_taken: int) -> None:
    """The others get each token once, and vLLM's output loop, which would fail all of them, hears nothing of it."""
    tapped = Tapped()
    broken, _ = tapped.add("broken", sink=BrokenSink(num_taken))
    whole, _ = tapped.add("whole")
    names = ["broken", "whole"]
    tapped.step(*map(first, names))
    tapped.pipe(*(piped(name, 1) for name in names))
    tapped.pipe(*(piped(name, 2, LAST) for name in names))
    tapped.step(*(copy(name, finish_reason=LAST) for name in names))
    assert (whole.token_ids, whole.error) == ([0, 1, 2], None)
    assert broken.token_ids == [0, 1, 2][:num_taken]
    assert isinstance(broken.error, ConnectionLost)
    assert tapped.tap.find("broken") is not None, "it is there to be stopped in the engine"


def test_reader_that_breaks_on_vllms_way_loses_its_own_request_alone() -> None:
    tapped = Tapped()
    broken, _ = tapped.add("broken", sink=BrokenSink(1), logprobs=1)
    whole, _ = tapped.add("whole", logprobs=1)
    names = ["broken", "whole"]
    tapped.step(*map(first, names))
    tapped.step(*(output(name, 1) for name in names))
    tapped.step(*(output(name, 2, finish_reason=LAST) for name in names))
    assert (broken.token_ids, whole.token_ids) == ([0], [0, 1, 2])
    assert isinstance(broken.error, ConnectionLost)


def test_dead_engine_fails_all_that_run_although_a_reader_breaks() -> None:
    tapped = Tapped()
    broken, _ = tapped.add("broken", sink=BrokenSink(0))
    other, _ = tapped.add("other")
    tapped.tap.propagate_error(ValueError("out of memory"))
    assert (str(broken.error), str(other.error)) == ("out of memory", "out of memory")


def test_step_that_cannot_be_sent_reaches_neither_vllms_loop_nor_the_pipe() -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a")
    tapped.step_error = ConnectionLost("the peer is gone")
    tapped.step(first("a"))
    tapped.pipe(piped("a", 1))
    tapped.pipe(piped("a", 2, LAST))
    assert (sink.token_ids, tapped.num_steps) == ([0, 1, 2], 3)


def test_abort_ends_a_request_with_a_delta_that_says_so() -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a")
    tapped.tap.abort_requests(["a"], internal=False)
    assert [delta.finish_reason for delta in sink.deltas] == [FinishReason.ABORT]
    assert tapped.tap.num_running == 0


def test_id_that_is_running_is_refused() -> None:
    tapped = Tapped()
    tapped.add("a")
    with pytest.raises(InvalidRequest, match="already running"):
        tapped.add("a")


def test_request_that_others_schemas_left_no_time_for_may_come_again() -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a")
    crowded = "baton: the step's grammars too slow"
    tapped.step(output("a", 1, finish_reason=EngineFinishReason.ERROR, stop_reason=crowded))
    assert isinstance(sink.error, Overloaded)
    assert (sink.error.http_status, sink.error.retry_after_s) == (503, 2.0)
    assert isinstance(ErrorMessage.of(sink.error).to_error(), Overloaded), "it is told to the ingress"


def test_request_whose_grammar_was_ended_fails_for_good_and_stays_until_its_reader_stops_it() -> None:
    tapped = Tapped()
    sink, _ = tapped.add("a")
    tapped.step(output("a", 1, finish_reason=EngineFinishReason.ERROR, stop_reason="baton: grammar too slow"))
    assert isinstance(sink.error, ConstraintFailed) and not isinstance(sink.error, WorkerFailed)
    assert sink.error.http_status == 400
    assert tapped.tap.find("a") is not None
