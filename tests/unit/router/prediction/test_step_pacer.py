"""How an engine that reads experts for prompts divides its time between decodes and prompts."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prediction.hardware import prior
from router.prediction.learned_latency import LatencyModel
from router.prediction.long_steps import LONG_OF_TPOT, MOST_SAVING, LongSteps, long_steps
from router.prediction.step_chunk import StepBound
from router.prediction.step_model import StepModel
from router.prediction.step_pacer import StepPacer, Wanted
from router.prediction.step_room import StepRoom


def times_of(kind: str) -> StepModel:
    times = prior(kind)
    assert times
    return times


DENSE, MIXTURE = times_of("qwen3-32b|h100|tp2"), times_of("qwen3-30b-a3b|h100|tp1")
MOST = 8192
TPOT_S = 0.02


class Engine:
    """An engine on which prompts always wait, `pace` times as slow as it predicts."""

    def __init__(self, num_decoding: int = 8, tpot_s: float = TPOT_S, pace: float = 1.0, num_computed: int = 0) -> None:
        """`num_computed`: tokens of each prompt that come before those that wait."""
        self.model, self.pacer, self.num_computed = LatencyModel(MIXTURE), StepPacer(), num_computed
        self.num_decoding, self.tpot_s, self._pace = num_decoding, tpot_s, pace
        self.now = 0.0

    def step(self, num_wanted: int = MOST) -> int:
        """Prompt tokens of the next step."""
        room = self.room(num_wanted)
        self.pacer.ran()
        num_new = min(num_wanted, room.tokens(self.num_computed))
        added_s = self.model.times.added_s(num_new, self.num_decoding, self.num_computed)
        self.now += self._pace * (self.model.times.decode_s(self.num_decoding, 0) + added_s)
        return num_new

    def room(self, num_wanted: int = MOST) -> StepRoom:
        objectives = [self.tpot_s] * self.num_decoding
        wanted = Wanted(num_wanted, self.num_computed)
        return self.pacer.room(self.model, self.num_decoding, 0, objectives, wanted, MOST, self.now)


def test_mixture_computes_prompts_in_long_steps_at_the_mean_that_the_objective_allows() -> None:
    engine = Engine()
    steps = [engine.step() for _ in range(200)]
    computed = [num_new for num_new in steps if num_new]
    assert 20 < len(computed) < 150
    assert min(computed) > 1000
    assert 0.85 * TPOT_S < engine.now / 200 < 0.95 * TPOT_S


def test_long_steps_compute_far_more_than_steps_within_the_objective() -> None:
    engine, model = Engine(), LatencyModel(MIXTURE)
    decode_s = model.times.decode_s(8, 0)
    within = StepRoom(model.times, MOST, 8, model.bound.longest_step_s(decode_s, TPOT_S) - decode_s).tokens(0)
    assert sum(engine.step() for _ in range(100)) > 5 * 100 * within


@pytest.mark.parametrize("num_computed", [10_000, 30_000, 60_000])
def test_end_of_a_long_prompt_is_computed_in_steps_as_long_as_its_start(num_computed: int) -> None:
    engine = Engine(num_decoding=4, num_computed=num_computed)
    num_new = sum(engine.step() for _ in range(100))
    alone_s = MIXTURE.step_s(MOST, MOST * (num_computed + MOST / 2), 0, 0)
    assert num_new / engine.now > 0.2 * MOST / alone_s
    assert engine.now / 100 < 0.95 * TPOT_S


def test_short_prompt_alone_waits_for_fewer_steps_than_a_long_one() -> None:
    def wait(num_wanted: int) -> int:
        engine = Engine(tpot_s=0.024)
        return next(number for number in range(100) if engine.step(num_wanted))

    assert wait(1) < wait(MOST)


@given(st.integers(1, 200), st.floats(1e-3, 0.1), st.floats(0.5, 3.0), st.integers(1, 2 * MOST))
def test_prompts_never_wait_for_longer_than_the_most_saving_steps(
    num_decoding: int, tpot_s: float, pace: float, num_wanted: int
) -> None:
    engine, waited = Engine(num_decoding, tpot_s, pace), 0
    for _ in range(100):
        waited = 0 if engine.step(num_wanted) else waited + 1
        assert waited <= MOST_SAVING


@given(st.integers(1, 200), st.floats(1e-3, 0.1), st.integers(1, MOST))
def test_mean_of_steps_keeps_the_bound_unless_prompts_have_waited_for_the_most_saving_steps(
    num_decoding: int, tpot_s: float, num_wanted: int
) -> None:
    engine, waited, was_forced = Engine(num_decoding, tpot_s), 0, False
    for _ in range(100):
        waited = 0 if engine.step(num_wanted) else waited + 1
        was_forced |= waited == MOST_SAVING
    if steps_of(num_decoding, tpot_s) is not None and not was_forced:
        bound_s = engine.model.bound.longest_step_s(MIXTURE.decode_s(num_decoding, 0), tpot_s)
        assert engine.now <= 100 * bound_s * (1 + 1e-9)


@pytest.mark.parametrize("tpot_ms", [1, 3, 4.3, 5, 5.1, 6, 8, 12, 50])
def test_no_objective_of_an_answer_stops_the_prompts_beside_it(tpot_ms: float) -> None:
    engine, alone_s = Engine(1, tpot_ms / 1e3), MIXTURE.prefill_s(20 * MOST, 0, MOST)
    computed = 0
    while computed < 20 * MOST:
        computed += engine.step()
    assert engine.now < 12 * alone_s


def test_saved_time_is_bounded_and_forgotten() -> None:
    engine = Engine()
    for _ in range(1000):
        engine.pacer.ran()
        engine.now += engine.model.times.decode_s(8, 0)
    longest_s = LONG_OF_TPOT * TPOT_S - engine.model.times.decode_s(8, 0)
    assert engine.room().tokens(0) == StepRoom(engine.model.times, MOST, 8, longest_s).tokens(0)
    engine.pacer.forget(engine.now)
    assert engine.room().saves_time


def test_time_that_passes_without_steps_saves_nothing() -> None:
    engine = Engine()
    engine.room()
    engine.now += 1000.0
    assert engine.room().saves_time


def steps_of(num_decoding: int, tpot_s: float, times: StepModel = MIXTURE) -> LongSteps | None:
    return long_steps(times, StepBound(), num_decoding, times.decode_s(num_decoding, 0), tpot_s, MOST, 0)


def test_long_steps_are_only_where_short_ones_would_mostly_read_experts() -> None:
    assert steps_of(8, TPOT_S) is not None
    assert steps_of(8, TPOT_S, DENSE) is None
    assert steps_of(8, 0.3) is None
    assert steps_of(8, inf) is None
    assert steps_of(200, 0.1) is None
    assert steps_of(8, MIXTURE.decode_s(8, 0)) is not None


def test_closer_objective_has_more_steps_save_for_a_long_one() -> None:
    saving = [steps.num_saving for tpot_s in (0.014, 0.016, 0.02, 0.024) if (steps := steps_of(8, tpot_s))]
    assert len(saving) == 4
    assert MOST_SAVING >= saving[0] > saving[1] > saving[2] > saving[3] > 0
