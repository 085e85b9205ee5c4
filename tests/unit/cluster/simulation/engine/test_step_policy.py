"""Which prompts a simulated engine computes first, and how many tokens of them beside decodes."""

from dataclasses import replace
from typing import Any

from cluster.simulation.engine.engine_request import EngineRequest, Moment
from cluster.simulation.engine.engine_setting import EngineSetting
from cluster.simulation.engine.simulated_engine import SimulatedEngine
from router.prediction.step_chunk import MOST_OF_TPOT
from router.prediction.step_model import StepModel

MODEL = StepModel(
    fixed_s=0.010,
    token_s=1e-6,
    knee_tokens=100,
    beyond_knee_s=50e-6,
    attended_s=0.0,
    request_s=1e-5,
    context_s=1e-8,
)


def an_engine(**changes: Any) -> SimulatedEngine:
    setting: dict[str, Any] = {"kv_capacity_tokens": 100_000, "max_step_tokens": 2000, "block_size": 100, **changes}
    return SimulatedEngine(EngineSetting(**setting), MODEL, MODEL)


def first_tokens(engine: SimulatedEngine, until: float = 100.0) -> list[tuple[str, float]]:
    seen = []
    while not engine.is_empty and (now := engine.next_at) < until:
        seen += [(request.request_id, now) for request, moment in engine.advance() if moment is Moment.FIRST_TOKEN]
    return seen


def test_urgent_prompt_overtakes_a_long_one_that_goes_on_after_it() -> None:
    engine = an_engine(by_deadline=True, overtakes=True)
    engine.submit(EngineRequest("long", 30_000, 1, due_at=60.0), 0.0)
    engine.advance()
    engine.submit(EngineRequest("short", 500, 1, due_at=1.0), 0.001)
    assert [name for name, _ in first_tokens(engine)] == ["short", "long"]


def test_first_come_first_served_engine_keeps_its_order() -> None:
    engine = an_engine()
    engine.submit(EngineRequest("long", 30_000, 1, due_at=60.0), 0.0)
    engine.advance()
    engine.submit(EngineRequest("short", 500, 1, due_at=1.0), 0.001)
    assert [name for name, _ in first_tokens(engine)] == ["long", "short"]


def test_engine_with_priorities_begins_the_most_urgent_prompt_and_finishes_what_it_has_begun() -> None:
    engine = an_engine(by_deadline=True)
    engine.submit(EngineRequest("begun", 30_000, 1, due_at=60.0), 0.0)
    engine.advance()
    engine.submit(EngineRequest("later", 500, 1, due_at=2.0), 0.001)
    engine.submit(EngineRequest("sooner", 500, 1, due_at=1.0), 0.002)
    assert [name for name, _ in first_tokens(engine)] == ["begun", "sooner", "later"]


def test_long_prompt_leaves_a_part_of_each_step_to_others() -> None:
    engine = an_engine(most_of_prompt=500)
    engine.submit(EngineRequest("long", 30_000, 1), 0.0)
    engine.advance()
    engine.submit(EngineRequest("short", 500, 1), 0.001)
    assert [name for name, _ in first_tokens(engine)] == ["short", "long"]


def test_prompts_with_long_contexts_beside_short_ones_keep_the_objective() -> None:
    """The short prompt comes first and leaves the step many tokens, which take long at the end of the long prompt."""
    steep = replace(MODEL, attended_s=2e-9)
    setting = EngineSetting(
        kv_capacity_tokens=100_000,
        max_step_tokens=2000,
        block_size=100,
        has_short_steps=True,
        by_deadline=True,
        overtakes=True,
    )
    engine = SimulatedEngine(setting, steep, steep)
    engine.submit(EngineRequest("decoding", 10, 2000, tpot_s=0.040), 0.0)
    first_tokens(engine, until=0.05)
    engine.submit(EngineRequest("long", 60_000, 1, due_at=500.0, tpot_s=0.040), 0.06)
    lengths, last, number = [], engine.next_at, 0
    while number < 500:
        number += 1
        engine.submit(EngineRequest(f"short-{number}", 40, 1, due_at=1.0, tpot_s=0.040), last)
        engine.advance()
        lengths.append(engine.next_at - last)
        last = engine.next_at
    late = lengths[100:]
    assert max(late) <= MOST_OF_TPOT * 0.040 * 1.01
    assert max(late) > MOST_OF_TPOT * 0.040 * 0.9


def test_steps_beside_a_decode_keep_its_objective_and_are_long_again_when_it_has_ended() -> None:
    engine = an_engine(has_short_steps=True)
    engine.submit(EngineRequest("decoding", 10, 40, tpot_s=0.040), 0.0)
    first_tokens(engine, until=0.05)
    engine.submit(EngineRequest("long", 40_000, 1, tpot_s=0.040), 0.06)
    lengths, last = [], engine.next_at
    while not engine.is_empty:
        engine.advance()
        if engine.next_at < float("inf"):
            lengths.append(engine.next_at - last)
            last = engine.next_at
    beside = lengths[1:30]
    assert max(beside) <= MOST_OF_TPOT * 0.040 * 1.01
    assert min(beside) > MOST_OF_TPOT * 0.040 * 0.9
    assert max(lengths) > 0.080
