"""How long the blocks of a conversation are worth keeping, by when conversations came back."""

from hypothesis import given
from hypothesis import strategies as st

from router.retention.return_times import EDGES_S, MOST_COUNTED, MOST_KINDS, AnswerEnding, ReturnKind, ReturnTimes

TOOL, STOP = ReturnKind(AnswerEnding.TOOL), ReturnKind(AnswerEnding.STOP)


def test_tool_calls_are_kept_for_some_seconds_and_chats_are_not_before_anything_is_learned() -> None:
    times = ReturnTimes()
    assert 8.0 <= times.keep_s(TOOL) <= 32.0
    assert times.keep_s(STOP) == 0.0


def test_tools_that_take_a_minute_are_kept_longer() -> None:
    times = ReturnTimes()
    for _ in range(100):
        times.returned(TOOL, 50.0)
    assert times.keep_s(TOOL) == 64.0


def test_tools_after_which_nobody_comes_back_are_not_kept() -> None:
    times = ReturnTimes()
    for _ in range(400):
        times.ended(TOOL)
    assert times.keep_s(TOOL) <= 1.0


def test_answers_of_agents_that_call_no_tools_are_kept_once_they_are_known() -> None:
    times, agent = ReturnTimes(), ReturnKind(AnswerEnding.STOP, tenant=3)
    for _ in range(60):
        times.returned(agent, 1.5)
    assert times.keep_s(agent) >= 2.0
    assert times.keep_s(STOP) == 0.0


def test_habits_that_change_are_followed() -> None:
    times = ReturnTimes()
    for _ in range(2000):
        times.returned(TOOL, 0.3)
    for _ in range(2000):
        times.returned(TOOL, 50.0)
    assert times.keep_s(TOOL) == 64.0


def test_number_of_kinds_is_bounded() -> None:
    times = ReturnTimes()
    for tenant in range(2 * MOST_KINDS):
        times.returned(ReturnKind(AnswerEnding.STOP, tenant), 1.0)
        times.keep_s(ReturnKind(AnswerEnding.STOP, tenant))
    assert times.keep_s(ReturnKind(AnswerEnding.TOOL, 10 * MOST_KINDS)) == times.keep_s(TOOL)


@given(st.lists(st.floats(0.0, 1e6) | st.none(), max_size=1500), st.floats(0.0, 1e6))
def test_chances_are_sound_whatever_was_seen(gaps: list[float | None], waited_s: float) -> None:
    times = ReturnTimes()
    for gap in gaps:
        if gap is None:
            times.ended(TOOL)
        else:
            times.returned(TOOL, gap)
    assert 0.0 <= times.chance_per_s(TOOL, waited_s) <= 1.0 / EDGES_S[0]
    assert times.keep_s(TOOL) in (0.0, *EDGES_S)
    assert sum(times._counts.get(TOOL, [])) <= MOST_COUNTED
