"""Which tokens each step computes, with vLLM's scheduler and without a model."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.config import KVTransferConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from cluster.engine_core.engine_hints import ENGINE_KIND, KEPT_SHARE
from cluster.engine_scheduler.deadline_scheduler import AsyncDeadlineScheduler, DeadlineScheduler, deadline_scheduler
from cluster.messages.retention import RetentionCounts
from router.prediction.hardware import prior
from router.prediction.long_steps import MOST_SAVING
from router.prediction.step_chunk import LEAST_CHUNK, LEAST_OF_TPOT
from router.prediction.step_model import StepModel, prompt_attention
from tests.component.cluster.engine_scheduler.stepping import (
    BLOCK,
    CHUNK,
    MIXTURE,
    MOST,
    SLOTS,
    STEEP,
    TIMES,
    TPOT_S,
    PullingConnector,
    SamplingConnector,
    Stepping,
    a_config,
    parts_of,
)
from tests.expected import present

KINDS = pytest.mark.parametrize("kind", [DeadlineScheduler, AsyncDeadlineScheduler])
SOON, LATE = 10, 9000
OF_SOME_TOKENS_S = 1e-6
"""Seconds that some tokens of context more or less make of a step: an asynchronous scheduler does not know the last
ones yet.
"""


def a_scheduler(*, is_async: bool = False, kept_share: float = 0.0) -> Scheduler:
    """As vLLM's engine core makes it of Baton's configuration."""
    config = a_config(num_blocks=10, slots=1, caches=kept_share > 0)
    config.scheduler_config.async_scheduling = is_async
    config.scheduler_config.disable_hybrid_kv_cache_manager = True  # as the connector below wants it
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="SamplingConnector",
        kv_connector_module_path=SamplingConnector.__module__,
        kv_role="kv_both",
        kv_connector_extra_config={
            ENGINE_KIND: "meta-llama/Llama-3.1-8B|NVIDIA H100|tp1|pp1|decode",
            KEPT_SHARE: kept_share,
        },
    )
    return deadline_scheduler(**parts_of(config))


@KINDS
def test_engine_gets_the_scheduler_that_it_needs(kind: Any) -> None:
    assert type(a_scheduler(is_async=kind is AsyncDeadlineScheduler)) is kind


def test_engine_learns_the_times_of_its_own_steps_from_the_prior_of_its_kind() -> None:
    scheduler = a_scheduler()
    assert isinstance(scheduler, DeadlineScheduler)
    budget, sampler = scheduler._budget, scheduler.connector.steps
    expected_s = budget.times.decode_s(1, 100)
    assert budget.times == prior("llama-3.1-8b|h100")
    for number in range(10):
        scheduler.add_request(_request(f"request-{number}"))
        sampler.scheduled(scheduler.schedule(), float(number))
        sampler.done(number + 2 * expected_s)
        scheduler.finish_requests(f"request-{number}", RequestStatus.FINISHED_ABORTED)
    assert budget.times.decode_s(1, 100) > 1.5 * expected_s


def test_connector_hears_what_became_of_kept_blocks() -> None:
    scheduler = a_scheduler(kept_share=0.5)
    assert isinstance(scheduler, DeadlineScheduler)
    kept = present(scheduler._conversations)
    assert scheduler.connector.retention_log.take(1000.0) == []
    kept.counts.returned = 2
    (told,) = scheduler.connector.retention_log.take(2000.0)
    assert told == msgspec.structs.astuple(RetentionCounts(returned=2))


@KINDS
def test_request_of_a_lower_class_gives_up_its_memory_first(kind: Any) -> None:
    """It is due earlier, and so a deadline alone would keep it."""
    engine = Stepping(num_blocks=11, kind=kind)
    batch = engine.add("batch", 4 * BLOCK, due=SOON, num_output=3 * BLOCK, rank=2)
    interactive = engine.add("interactive", 4 * BLOCK, due=LATE, num_output=3 * BLOCK)
    engine.until_done()
    assert (batch.num_preemptions > 0, interactive.num_preemptions) == (True, 0)
    assert (batch.priority, interactive.priority) == (SOON, LATE)
    assert engine.generated("batch") == engine.generated("interactive") == 3 * BLOCK


@KINDS
def test_request_that_is_due_last_gives_up_its_memory_within_a_class(kind: Any) -> None:
    engine = Stepping(num_blocks=11, kind=kind)
    soon = engine.add("soon", 4 * BLOCK, due=SOON, num_output=3 * BLOCK, rank=2)
    late = engine.add("late", 4 * BLOCK, due=LATE, num_output=3 * BLOCK, rank=2)
    engine.until_done()
    assert (soon.num_preemptions, late.num_preemptions > 0) == (0, True)


def test_prompt_is_computed_in_long_steps_while_nobody_decodes() -> None:
    engine = Stepping()
    engine.add("long", 3 * MOST)
    assert engine.until_done() == [{"long": MOST}] * 3


@KINDS
def test_step_in_which_a_request_decodes_computes_one_chunk_of_prompts(kind: Any) -> None:
    engine = Stepping(kind=kind)
    engine.add("decoding", 10, num_output=8)
    engine.step()
    engine.add("long", 6 * CHUNK)
    steps = engine.until_done()
    assert [step for step in steps if {"decoding", "long"} == step.keys()][:5] == [{"decoding": 1, "long": CHUNK}] * 5
    assert (engine.generated("decoding"), engine.computed("long")) == (8, 6 * CHUNK)


@KINDS
def test_prompts_divide_the_time_of_a_step_and_not_a_number_of_tokens(kind: Any) -> None:
    engine = _decoding(kind)
    engine.add("long", 4000, due=LATE)
    while engine.computed("long") < 2000:
        engine.step()
    engine.add("urgent", 40, due=SOON)
    step = engine.step()
    while "urgent" not in step:
        step = engine.step()
    assert step["urgent"] == 40
    num_long, seconds = step["long"], LEAST_OF_TPOT * TPOT_S
    attended = prompt_attention(40, 0) + prompt_attention(num_long, engine.computed("long") - num_long)
    assert 0.9 * seconds < STEEP.step_s(40 + num_long, attended, 1, 30) < 1.01 * seconds


@KINDS
def test_what_a_step_has_left_by_rounding_begins_no_further_prompt(kind: Any) -> None:
    engine = _decoding(kind)
    engine.add("first", 3000, due=SOON)
    for _ in range(20):
        engine.step()
    engine.add("later", 3000, due=LATE)
    together = [step for step in (engine.step() for _ in range(20)) if {"first", "later"} <= step.keys()]
    assert not [step for step in together if step["later"] < LEAST_CHUNK and step["first"] > LEAST_CHUNK]
    assert engine.computed("first") < 3000


@KINDS
def test_mixture_of_experts_computes_prompts_in_few_long_steps_and_answers_keep_their_mean(kind: Any) -> None:
    engine = Stepping(kind=kind, times=MIXTURE)
    engine.add("decoding", 10, num_output=60)
    engine.step()
    engine.add("prompt-1", 7 * MOST)
    engine.add("prompt-2", 7 * MOST)
    engine.until_done()
    with_prompts = [number for number, step in enumerate(engine.steps) if any("prompt" in name for name in step)]
    first, last = with_prompts[0], with_prompts[-2]
    assert len(with_prompts) == 15
    assert all("decoding" in step for step in engine.steps[first:last])
    assert 0.8 * TPOT_S < (engine.ended_at[last] - engine.ended_at[first - 1]) / (last - first + 1) < TPOT_S


@KINDS
@pytest.mark.parametrize("num_steps", range(4))
def test_urgent_prompt_overtakes_whether_it_comes_before_a_long_step_or_before_one_that_saves_time(
    kind: Any, num_steps: int
) -> None:
    engine = Stepping(kind=kind, times=MIXTURE)
    engine.add("decoding", 10, num_output=60)
    engine.step()
    engine.add("long", 7 * MOST, due=LATE)
    while not engine.computed("long"):
        engine.step()
    for _ in range(num_steps):
        engine.step()
    num_computed = engine.computed("long")
    engine.add("urgent", 40, due=SOON)
    while not engine.computed("urgent"):
        engine.step()
    assert engine.computed("long") <= num_computed + 2 * MOST


def test_prompt_that_had_no_token_of_a_step_overtakes_in_a_later_one() -> None:
    engine = Stepping()
    engine.add("decoding", 10, num_output=100)
    engine.step()
    engine.add("last", 20 * CHUNK, due=LATE)
    engine.step()
    engine.add("first", 2 * CHUNK, due=SOON, num_output=50)
    engine.add("second", CHUNK, due=SOON + 1)
    engine.until_done()
    assert engine.firsts == ["decoding", "first", "second", "last"]


def test_looser_objective_leaves_more_tokens_to_prompts() -> None:
    def chunk(*objectives: float | None) -> int:
        engine = Stepping()
        for number, tpot_s in enumerate(objectives):
            engine.add(f"decoding-{number}", 10, num_output=8, tpot_s=tpot_s)
        engine.step()
        engine.add("long", 2 * MOST)
        return engine.step()["long"]

    tight, loose = 0.02, 0.05
    assert LEAST_CHUNK < chunk(tight) < chunk(loose) < chunk(None) == MOST - 1
    assert chunk(tight, tight) - 2 <= chunk(loose, None, tight) <= chunk(tight, tight)


def test_objective_that_decodes_alone_miss_stops_no_prompt() -> None:
    engine = Stepping()
    engine.add("decoding", 10, num_output=100, tpot_s=1e-3)
    engine.step()
    engine.add("long", 2 * MOST)
    assert engine.step()["long"] >= LEAST_CHUNK


def test_objective_of_a_prompt_bounds_no_step_before_it_decodes() -> None:
    engine = Stepping()
    engine.add("first", 3 * MOST, num_output=5, tpot_s=1e-3)
    assert [engine.step() for _ in range(3)] == [{"first": MOST}] * 3


@KINDS
def test_prompt_that_has_just_been_computed_and_asks_for_one_token_makes_no_step_short(kind: Any) -> None:
    engine = Stepping(kind=kind)
    engine.add("first", 100, due=SOON)
    engine.add("second", 3 * MOST, due=LATE)
    steps = [engine.step() for _ in range(3)]
    assert steps == [{"first": 100, "second": MOST - 100}, {"second": MOST}, {"second": MOST}]


def test_waiting_prompts_are_computed_in_the_order_of_their_deadlines() -> None:
    engine = Stepping()
    for name, due in (("never", None), ("third", 30), ("first", 10), ("second", 20)):
        engine.add(name, MOST, **({} if due is None else {"due": due}))
    engine.until_done()
    assert engine.firsts == ["first", "second", "third", "never"]


@KINDS
def test_urgent_prompt_overtakes_one_that_is_being_computed(kind: Any) -> None:
    engine = Stepping(kind=kind)
    engine.add("long", 4 * MOST, due=LATE)
    engine.step()
    engine.add("urgent", 2 * CHUNK, due=SOON)
    steps = engine.until_done()
    assert {"urgent": 2 * CHUNK} in steps
    assert engine.firsts == ["urgent", "long"]
    assert (engine.computed("urgent"), engine.computed("long")) == (2 * CHUNK, 4 * MOST)


def test_overtaken_prompt_takes_the_tokens_that_cost_no_time() -> None:
    engine = Stepping()
    engine.add("long", 2 * MOST, due=LATE)
    engine.step()
    engine.add("urgent", 5, due=SOON)
    engine.add("later", MOST, due=LATE + 1)
    assert engine.step() == {"urgent": 5, "long": CHUNK - 5}


def test_prompt_overtakes_alone_beside_decodes_without_an_objective() -> None:
    engine = Stepping()
    engine.add("decoding", 10, num_output=20, tpot_s=None)
    engine.step()
    engine.add("long", 3 * MOST, due=LATE)
    engine.step()
    engine.add("urgent", 2 * CHUNK, due=SOON)
    assert engine.step() == {"decoding": 1, "urgent": 2 * CHUNK}


def test_prompts_that_are_being_computed_and_waiting_ones_merge_by_deadline() -> None:
    engine = Stepping()
    for name, due in (("first", 10), ("third", 30)):
        engine.add(name, MOST + 10, due=due)
    engine.step()
    engine.step()
    engine.add("second", 2 * MOST, due=20)
    engine.until_done()
    assert engine.firsts == ["first", "second", "third"]


def test_prompt_that_is_due_later_overtakes_nobody() -> None:
    engine = Stepping()
    engine.add("first", 2 * MOST, due=SOON)
    engine.step()
    engine.add("second", 10, due=LATE)
    assert engine.step() == {"first": MOST}


def test_prompt_that_others_overtake_all_the_time_is_computed_in_the_end() -> None:
    engine = Stepping()
    engine.add("long", 5 * MOST, due=200)
    for now in range(0, 400, 20):
        engine.add(f"urgent-{now}", MOST // 2, due=now + 100)
        engine.step()
    assert "long" in engine.firsts
    assert engine.firsts[-1] != "long"


def test_decodes_go_on_while_prompts_overtake() -> None:
    engine = Stepping()
    engine.add("decoding", 10, num_output=20)
    engine.step()
    engine.add("long", 10 * CHUNK, due=LATE)
    engine.step()
    engine.add("urgent", 3 * CHUNK, due=SOON)
    assert [engine.step() for _ in range(3)] == [{"decoding": 1, "urgent": CHUNK}] * 3
    assert engine.step() == {"decoding": 1, "long": CHUNK}


def test_prompt_without_memory_overtakes_nobody_for_longer_than_a_step() -> None:
    engine = Stepping(num_blocks=2 * MOST // BLOCK)
    engine.add("long", MOST + 500, due=LATE)
    engine.step()
    engine.add("urgent", MOST, due=SOON)
    steps = engine.until_done()
    assert steps[:2] == [{}, {"long": 500}]
    assert engine.firsts == ["long", "urgent"]


def test_request_that_still_pulls_holds_up_no_prompt() -> None:
    engine = Stepping()
    engine.add("long", 2 * MOST, due=LATE)
    engine.step()
    _pulling(engine, "pulling", 20)
    assert engine.step() == {"long": MOST}


def test_pulled_request_decodes_in_the_next_step_beside_a_prompt_of_any_length() -> None:
    engine = Stepping()
    engine.add("long", 4 * MOST, due=LATE)
    engine.step()
    pulled = _pulling(engine, "pulled", 20)
    engine.scheduler.connector = PullingConnector(engine.scheduler.kv_cache_config)
    engine.scheduler.finished_recving_kv_req_ids.add(pulled.request_id)
    assert engine.step() == {"pulled": 1, "long": CHUNK}


def test_step_beside_a_long_prompt_has_room_to_start_a_pull() -> None:
    engine = Stepping()
    engine.add("long", 4 * MOST, due=SOON)
    engine.step()
    engine.scheduler.connector = PullingConnector(engine.scheduler.kv_cache_config)
    request = engine.add("pull", 40, due=LATE)
    request.kv_transfer_params = {"do_remote_prefill": True}
    engine.add("later", 40, due=LATE + 1)
    assert engine.step() == {"long": MOST - 1}
    assert request.status is RequestStatus.WAITING_FOR_REMOTE_KVS


@KINDS
@settings(max_examples=60, deadline=None)
@given(
    traffic=st.lists(
        st.tuples(
            st.integers(0, 40),
            st.integers(1, 600),
            st.integers(1, 30),
            st.integers(1, 20),
            st.sampled_from((None, 0.001, 0.013, 0.02, 0.05)),
        ),
        min_size=1,
    ),
    num_blocks=st.integers(41, 120),
    slots=st.integers(1, 8),
    times=st.sampled_from((TIMES, STEEP, MIXTURE)),
)
def test_every_request_ends_with_all_its_tokens_in_steps_that_objectives_allow(
    kind: Any, traffic: list[tuple[int, int, int, int, float | None]], num_blocks: int, slots: int, times: StepModel
) -> None:
    engine = Stepping(num_blocks, kind=kind, slots=slots, times=times)
    requests = []
    for number, (gap, num_tokens, due, num_output, tpot_s) in enumerate(traffic):
        for _ in range(gap % 5):
            engine.step()
        requests.append(engine.add(f"request-{number}", num_tokens, due, num_output, tpot_s))
    engine.until_done(60 * (MOST_SAVING + 1) * len(traffic))
    for request, (_, num_tokens, _, num_output, _) in zip(requests, traffic, strict=True):
        assert engine.generated(request.request_id) == num_output
        if not request.num_preemptions:
            assert num_tokens + num_output - 1 <= engine.computed(request.request_id) <= num_tokens + num_output
    assert max(sum(step.values()) for step in engine.steps) <= MOST
    assert max(engine.overruns_s, default=0.0) <= OF_SOME_TOKENS_S


@settings(max_examples=60, deadline=None)
@given(
    objectives=st.lists(st.floats(1e-4, 0.1), min_size=1, max_size=SLOTS - 5),
    prompts=st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 30)), min_size=1, max_size=5),
)
def test_prompts_progress_in_each_step_beside_decodes(objectives: list[float], prompts: list[tuple[int, int]]) -> None:
    engine = Stepping()
    for number, tpot_s in enumerate(objectives):
        engine.add(f"decoding-{number}", 5, num_output=1000, tpot_s=tpot_s)
    engine.step()
    for number, (num_tokens, due) in enumerate(prompts):
        engine.add(f"prompt-{number}", num_tokens, due)
    left = sum(num_tokens for num_tokens, _ in prompts)
    while left:
        step = engine.step()
        computed = sum(num_tokens for name, num_tokens in step.items() if name.startswith("prompt"))
        assert computed >= min(LEAST_CHUNK, left)
        assert len(step) >= len(objectives)
        left -= computed
    assert max(engine.overruns_s) <= 1e-9


def _decoding(kind: Any) -> Stepping:
    """An engine with a request that decodes, on which a token after many others takes long."""
    engine = Stepping(kind=kind, times=STEEP)
    engine.add("decoding", 10, num_output=500)
    engine.step()
    return engine


def _request(name: str) -> Request:
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    return Request(name, list(range(20)), params, None)


def _pulling(engine: Stepping, name: str, num_tokens: int) -> Request:
    """A request whose blocks are being read."""
    scheduler = engine.scheduler
    request = engine.add(name, num_tokens, due=SOON)
    scheduler.waiting.remove_request(request)
    scheduler.kv_cache_manager.allocate_slots(request, num_tokens, delay_cache_blocks=True)
    request.status, request.num_computed_tokens = RequestStatus.WAITING_FOR_REMOTE_KVS, num_tokens
    scheduler._enqueue_waiting_request(request)
    return request
