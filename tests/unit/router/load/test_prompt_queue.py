"""How long a prompt waits on a worker, by the order in which the worker's engine computes prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Path, RequestId, WorkerId
from cluster.messages.placement import Placement, Slo
from router.load.charge import Charge, Work
from router.load.prompt_queue import PromptQueue
from router.prediction.output_lengths import LengthHistogram
from tests.unit.factories import a_placement_request

PLACEMENT = Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="", slo=Slo(1.0, 0.05))


def a_prompt(name: str, seconds: float, due_at: float) -> Charge:
    request = a_placement_request(name, num_prompt_tokens=100)
    return Charge(request, PLACEMENT, LengthHistogram(), Work(seconds, 0.0, seconds), 100, due_at, None, 0.0)


def a_queue(*prompts: tuple[str, float, float], by_deadline: bool = True, overtakes: bool = True) -> PromptQueue:
    queue = PromptQueue(0.0, by_deadline=by_deadline, overtakes=overtakes)
    for name, seconds, due_at in prompts:
        queue.add(a_prompt(name, seconds, due_at), 0.0)
    return queue


def test_urgent_prompt_waits_only_for_prompts_that_are_due_earlier() -> None:
    queue = a_queue(("long", 20.0, 60.0), ("short", 0.5, 1.0))
    assert queue.seconds(0.0) == pytest.approx(20.5)
    assert queue.seconds_before(2.0, 0.0) == pytest.approx(0.5)
    assert queue.seconds_before(0.5, 0.0) == 0.0
    assert [charge.request_id for charge in queue.after(2.0)] == ["long"]


def test_first_come_first_served_engine_has_every_prompt_wait_for_all() -> None:
    queue = a_queue(("long", 20.0, 60.0), ("short", 0.5, 1.0), by_deadline=False)
    assert queue.seconds_before(0.5, 0.0) == pytest.approx(20.5)
    assert queue.after(0.5) == []


def test_prompt_that_has_begun_keeps_its_place_where_none_overtakes_it() -> None:
    queue = a_queue(("long", 20.0, 60.0), ("later", 3.0, 90.0), ("short", 0.5, 1.0), overtakes=False)
    assert queue.seconds_before(0.5, 0.0) == pytest.approx(20.0)
    assert queue.seconds_before(2.0, 0.0) == pytest.approx(20.5)
    assert [charge.request_id for charge in queue.after(2.0)] == ["later"]
    queue.remove(RequestId("long"), 20.0)
    assert queue.seconds_before(0.5, 20.0) == pytest.approx(0.5)


def test_prompt_that_is_overtaken_goes_on_where_it_was() -> None:
    queue = a_queue(("long", 20.0, 60.0))
    queue.add(a_prompt("short", 1.0, 6.0), 5.0)
    assert queue.seconds(5.0) == pytest.approx(16.0)
    queue.remove(RequestId("short"), 6.0)
    assert queue.seconds(6.0) == pytest.approx(15.0)
    assert queue.seconds(21.0) == pytest.approx(0.0)


def test_first_prompt_that_is_late_holds_up_the_others_for_as_long_again() -> None:
    queue = a_queue(("first", 1.0, 1.0), ("second", 2.0, 2.0))
    assert queue.seconds(4.0) == pytest.approx(3.0 + 2.0)
    queue.add(a_prompt("third", 1.0, 9.0), 4.0)
    assert queue.seconds(5.0) == pytest.approx(4.0 + 2.0 + 1.0)
    queue.remove(RequestId("first"), 5.0)
    assert queue.seconds(5.0) == pytest.approx(3.0)


@given(
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 9.0), st.floats(0.0, 30.0), st.booleans()), max_size=12),
)
def test_any_history_leaves_a_valid_queue(
    by_deadline: bool, overtakes: bool, history: list[tuple[float, float, float, bool]]
) -> None:
    queue, now = PromptQueue(0.0, by_deadline=by_deadline, overtakes=overtakes), 0.0
    for number, (passes_s, seconds, due_in_s, ends_one) in enumerate(history):
        now += passes_s
        if ends_one and queue.charges:
            queue.remove(next(iter(queue.charges)), now)
        else:
            queue.add(a_prompt(str(number), seconds, now + due_in_s), now)
        queue.validate()
        assert 0.0 <= queue.seconds_before(now + 3.0, now) <= queue.seconds(now) + 1e-9
        assert queue.seconds_before(float("inf"), now) == pytest.approx(queue.seconds(now))
