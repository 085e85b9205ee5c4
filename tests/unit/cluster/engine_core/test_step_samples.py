from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engine_core.step_samples import (
    DECODE_INTERVAL_S,
    MAX_SAMPLES,
    STATS_KEY,
    TAKE_INTERVAL_S,
    Step,
    StepSampler,
    samples_in,
)
from cluster.messages.reports import StepSample
from router.prediction.step_model import prompt_attention


def a_step(
    new: dict[str, tuple[int, int]] | None = None,
    cached: dict[str, tuple[int, int]] | None = None,
    guesses: dict[str, list[int]] | None = None,
) -> Step:
    """Requests by name: how many tokens they have, and how many the step adds."""
    new, cached = new or {}, cached or {}
    num_scheduled = {name: num_new for name, (_, num_new) in (new | cached).items()}
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=past) for name, (past, _) in new.items()],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached), num_computed_tokens=[past for past, _ in cached.values()]
        ),
        num_scheduled_tokens=num_scheduled,
        total_num_scheduled_tokens=sum(num_scheduled.values()),
        scheduled_spec_decode_tokens=guesses or {},
    )


def sampled(*steps: tuple[Step, float, float]) -> list[StepSample]:
    """Steps with the times at which they were scheduled and done, in turn."""
    sampler = StepSampler()
    for step, at, done_at in steps:
        sampler.scheduled(step, at)
        sampler.done(done_at)
    return samples_in({STATS_KEY: sampler.take(1e9) or []})


DECODE = a_step(cached={"a": (10, 1), "b": (20, 1)})


def test_prompt_is_counted_by_its_tokens_and_the_work_of_their_attention() -> None:
    (sample,) = sampled((a_step(new={"a": (100, 10)}), 5.0, 5.5))
    assert sample == StepSample(num_prefill=10, attended=10 * 100 + 55, num_decoding=0, context_tokens=0, seconds=0.5)


@given(st.integers(0, 10**6), st.integers(2, 10**6))
def test_attention_is_that_of_the_latency_models(num_cached: int, num_new: int) -> None:
    (sample,) = sampled((a_step(new={"a": (num_cached, num_new)}), 5.0, 5.5))
    assert sample.attended == prompt_attention(num_new, num_cached)


def test_decoding_requests_are_counted_with_their_context() -> None:
    (sample,) = sampled((DECODE, 5.0, 5.25))
    assert (sample.num_prefill, sample.attended, sample.num_decoding, sample.context_tokens) == (0, 0, 2, 32)


def test_mixed_step_has_both() -> None:
    (sample,) = sampled((a_step(new={"p": (0, 4)}, cached={"chunk": (8, 8), "d": (50, 1)}), 1.0, 2.0))
    assert (sample.num_prefill, sample.attended) == (12, 10 + 8 * 8 + 36)
    assert (sample.num_decoding, sample.context_tokens) == (1, 51)


def test_prompt_whose_last_token_alone_is_computed_costs_what_a_decode_costs() -> None:
    (sample,) = sampled((a_step(new={"pulled": (700, 1)}), 1.0, 2.0))
    assert (sample.num_prefill, sample.num_decoding, sample.context_tokens) == (0, 1, 701)


def test_guessed_tokens_are_no_prompt() -> None:
    (sample,) = sampled((a_step(cached={"a": (10, 4)}, guesses={"a": [1, 2, 3]}), 1.0, 2.0))
    assert (sample.num_prefill, sample.num_decoding, sample.context_tokens) == (0, 1, 14)


def test_step_of_a_busy_engine_began_when_the_one_before_was_done() -> None:
    first, second = sampled((a_step(new={"a": (0, 10)}), 1.0, 1.5), (a_step(cached={"a": (10, 1)}), 1.6, 1.9))
    assert (first.seconds, second.seconds) == pytest.approx((0.5, 0.4))


def test_step_after_a_pause_began_when_it_was_scheduled() -> None:
    _, second = sampled((a_step(new={"a": (0, 10)}), 1.0, 1.5), (a_step(new={"b": (0, 10)}), 9.0, 9.25))
    assert second.seconds == pytest.approx(0.25)


def test_step_that_was_scheduled_ahead_began_when_the_one_before_was_done() -> None:
    sampler = StepSampler()
    sampler.scheduled(a_step(new={"a": (0, 10)}), 1.0)
    sampler.scheduled(a_step(new={"b": (0, 10)}), 1.1)
    sampler.done(2.0)
    sampler.scheduled(a_step(new={"c": (0, 10)}), 2.1)
    sampler.done(2.5)
    sampler.done(2.9)
    assert [s.seconds for s in samples_in({STATS_KEY: sampler.take(9.0)})] == [
        pytest.approx(seconds) for seconds in (1.0, 0.5, 0.4)
    ]


def test_step_without_requests_is_no_sample_and_ends_the_one_before() -> None:
    empty = a_step()
    samples = sampled(
        (DECODE, 1.0, 1.5), (empty, 1.6, 1.7), (a_step(new={"p": (0, 5)}, cached={"a": (1, 1)}), 1.8, 2.0)
    )
    assert [sample.seconds for sample in samples[1:]] == [pytest.approx(0.3)]
    assert len(samples) == 2


def test_of_steps_that_only_decode_some_are_sampled() -> None:
    steps = [(DECODE, 1.0 + 0.001 * i, 1.0009 + 0.001 * i) for i in range(100)]
    assert len(sampled(*steps)) == pytest.approx(0.1 / DECODE_INTERVAL_S, abs=1)


def test_listener_hears_of_a_sample_when_its_step_is_done() -> None:
    sampler, heard = StepSampler(), list[StepSample]()
    sampler.tell(heard.append)
    sampler.scheduled(a_step(new={"a": (0, 10)}), 1.0)
    assert heard == []
    sampler.done(1.5)
    assert heard == samples_in({STATS_KEY: sampler.take(9.0)}) == [StepSample(10, 55, 0, 0, 0.5)]


def test_samples_leave_together() -> None:
    sampler = StepSampler()
    prompt = a_step(new={"a": (0, 10)})
    for now in (1.0, 2.0, 2.0 + TAKE_INTERVAL_S / 2):
        sampler.scheduled(prompt, now)
        sampler.done(now)
    assert len(sampler.take(2.0) or []) == 3
    assert sampler.take(9.0) is None
    sampler.scheduled(prompt, 9.0)
    sampler.done(9.0)
    assert len(sampler.take(9.0) or []) == 1
    sampler.scheduled(prompt, 9.0)
    sampler.done(9.0)
    assert sampler.take(9.0 + TAKE_INTERVAL_S / 2) is None
    assert len(sampler.take(9.0 + 2 * TAKE_INTERVAL_S) or []) == 1


def test_samples_that_nobody_takes_are_bounded() -> None:
    sampler = StepSampler()
    for now in range(100):
        sampler.scheduled(a_step(new={"a": (0, 10)}), float(now))
        sampler.done(now + 0.5)
    assert len(sampler.take(1000.0) or []) == MAX_SAMPLES


def test_output_of_a_step_that_was_not_seen_is_ignored() -> None:
    sampler = StepSampler()
    sampler.done(1.0)
    assert sampler.take(9.0) is None
