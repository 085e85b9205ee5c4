"""What the bench of agents on real engines says of its rounds."""

from collections.abc import Callable, Sequence

import pytest

from bench.retention.agent_figures import Asked, chats, compared, differences, next_steps, row


def a_round(ttft_s: float, num_hits: int) -> list[Asked]:
    first = Asked(is_agent=True, step=0, ttft_s=9.0, tpot_s=0.9, num_prompt=1000, num_hits=0)
    steps = [
        Asked(is_agent=True, step=step, ttft_s=ttft_s, tpot_s=0.02, num_prompt=1000, num_hits=num_hits)
        for step in (1, 2, 3)
    ]
    chat = Asked(is_agent=False, step=0, ttft_s=0.1, tpot_s=0.03, num_prompt=500, num_hits=0)
    return [first, *steps, chat]


def test_first_steps_and_chats_are_no_next_steps() -> None:
    told = row("a", [a_round(0.2, 900), a_round(0.2, 700)])
    assert told == ("a", "6", "80.0 %", "200", "200", "200", "20", "20", "2", "100", "100", "30", "30")


def test_system_without_answers_has_a_row() -> None:
    assert row("a", [[]])[1:3] == ("0", "0.0 %")


def test_difference_is_ours_less_theirs_by_request() -> None:
    runs = {"theirs": [a_round(0.5, 400)] * 2, "ours": [a_round(0.2, 900)] * 2}
    assert differences(runs) == [
        ("ours less theirs", "+50.0 (+50.0 to +50.0)", "-300.0 (-300.0 to -300.0)", *["+0.0 (+0.0 to +0.0)"] * 2)
    ]


@pytest.mark.parametrize("which", [next_steps, chats])
def test_rounds_of_different_requests_are_not_compared(which: Callable[[Sequence[Asked]], list[Asked]]) -> None:
    with pytest.raises(ValueError):
        compared([a_round(0.2, 900)], [[]], which, lambda asked: asked.ttft_s)
