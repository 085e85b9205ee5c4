"""Which part of a conversation is sent: within the budget, whole turns, and the same beginning for many turns."""

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.context.draft import Draft, Memory
from api.context.plan import Budget, Measured, Plan, SummaryPlace, budget_of, plan, to_summarize
from api.context.prompt_notes import composed, text_of
from api.context.turn_boundaries import Item, is_asked, num_system, turn_starts
from cluster.config.context import ContextConfig
from tests.unit.conversations import called, conversations, numbered, returned, said

BUDGET = Budget(limit=400, high=300, low=150, step=60, memory=30, summary=30)


def tokens_of(item: Item) -> int:
    return 4 + len(text_of(item).split())


def measured(items: list[Item], *summaries: SummaryPlace) -> Measured:
    return Measured(
        [tokens_of(item) for item in items], [is_asked(item) for item in items], turn_starts(items), summaries
    )


def sends(items: list[Item]) -> list[int]:
    """How many items there were, each time that the model was asked."""
    return [
        number
        for number in range(1, len(items) + 1)
        if is_asked(items[number - 1]) and (number == len(items) or not is_asked(items[number]))
    ]


def kept(conversation: Measured, cut: int) -> int:
    return sum(conversation.tokens[cut:])


def summaries_of(items: list[Item]) -> list[SummaryPlace]:
    """As the upkeep writes them: one after a turn that needs it, there before the next."""
    made: list[SummaryPlace] = []
    for number in range(1, len(items) + 1):
        if number < len(items) and is_asked(items[number]) and not is_asked(items[number - 1]):
            past = measured(items[:number], *made)
            covers = to_summarize(past, plan(past, BUDGET).cut, BUDGET)
            if covers is not None:
                made.append(SummaryPlace(covers, number))
    return made


def test_planning_takes_time_in_proportion_to_the_conversation() -> None:
    """Which would take minutes otherwise."""
    calls = [called("c"), *(returned("c") for _ in range(40_000))]
    assert turn_starts([said("user", "a"), *calls, said("user", "b")]) == [0, 40_002]
    number = 40_000
    summaries = [SummaryPlace(covers, covers + 2) for covers in range(2, number, 2)]
    conversation = Measured([20] * number, [True, False] * (number // 2), range(0, number, 2), summaries)
    assert plan(conversation, BUDGET).summary is not None


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=20))
def test_turns_begin_outside_of_calls_and_their_results(steps: list[tuple[int, int]]) -> None:
    items = [called(str(call)) if is_call else returned(str(call)) for is_call, call in steps]
    with_questions = [item for one in items for item in (said("user", "a"), one)]
    starts = turn_starts(with_questions)
    for at, item in enumerate(with_questions):
        if item["type"] != "function_call_output":
            continue
        before = [
            place
            for place, other in enumerate(with_questions[:at])
            if other["type"] == "function_call" and other["call_id"] == item["call_id"]
        ]
        assert not before or not any(before[-1] < start <= at for start in starts)


@given(conversations())
def test_what_is_kept_is_within_its_budget_or_the_last_turn_alone(items: list[dict[str, Any]]) -> None:
    conversation = measured(items)
    cut = plan(conversation, BUDGET).cut
    assert kept(conversation, cut) <= BUDGET.high or cut == conversation.starts[-1]


@given(conversations())
def test_newest_turns_are_kept_whole(items: list[dict[str, Any]]) -> None:
    conversation = measured(items)
    cut = plan(conversation, BUDGET).cut
    assert cut in conversation.starts
    assert composed(items, cut) == [*items[: num_system(items)], *items[cut:]]


@given(conversations(), st.randoms(use_true_random=False))
def test_calls_and_results_stay_together_in_any_order(items: list[dict[str, Any]], chance: Random) -> None:
    end = len(items) - 1
    shuffled = [*items[:1], *chance.sample(items[1:end], max(0, end - 1)), *items[end:]]
    for start in turn_starts(shuffled):
        before = {item["call_id"] for item in shuffled[:start] if item["type"] == "function_call"}
        after = {item["call_id"] for item in shuffled[start:] if item["type"] == "function_call_output"}
        assert not before & after


@given(conversations())
def test_beginning_moves_only_when_the_turns_have_outgrown_their_budget(items: list[dict[str, Any]]) -> None:
    summaries = summaries_of(items)
    plans = [(number, plan(measured(items[:number], *known(summaries, number)), BUDGET)) for number in sends(items)]
    for (_, before), (number, after) in pairwise(plans):
        assert after.cut >= before.cut
        if after.cut != before.cut:
            assert kept(measured(items[:number]), before.cut) > BUDGET.high


def known(summaries: list[SummaryPlace], number: int) -> list[SummaryPlace]:
    return [summary for summary in summaries if summary.after < number]


@given(conversations())
def test_prompts_extend_each_other_until_the_beginning_moves(items: list[dict[str, Any]]) -> None:
    summaries = summaries_of(items)
    prompts: list[tuple[Plan, list[Item]]] = []
    for number in sends(items):
        there = known(summaries, number)
        chosen = plan(measured(items[:number], *there), BUDGET)
        text = f"summary of {chosen.summary.covers}" if chosen.summary else None
        prompts.append((chosen, composed(items[:number], chosen.cut, text)))
    for (before, shorter), (after, longer) in pairwise(prompts):
        if before == after:
            assert longer[: len(shorter)] == shorter
        else:  # a summary that came late is worth a prefix, if much would be missing without it
            covered = before.summary.covers if before.summary else measured(items).first
            assert after.cut != before.cut or sum(measured(items).tokens[covered : before.cut]) > BUDGET.step


@given(conversations(min_turns=10, max_turns=40))
def test_summaries_leave_little_out(items: list[dict[str, Any]]) -> None:
    conversation = measured(items, *summaries_of(items))
    chosen = plan(conversation, BUDGET)
    covered = chosen.summary.covers if chosen.summary else conversation.first
    longest_turn = max(
        sum(conversation.tokens[start:end]) for start, end in pairwise([*conversation.starts, len(items)])
    )
    assert sum(conversation.tokens[covered : chosen.cut]) <= BUDGET.step + 2 * longest_turn


@given(conversations())
def test_plan_depends_on_nothing_but_the_conversation(items: list[dict[str, Any]]) -> None:
    summaries = summaries_of(items)
    assert plan(measured(items, *summaries), BUDGET) == plan(measured(list(items), *summaries), BUDGET)


@given(conversations(), st.integers(0, 10), st.booleans())
def test_draft_gets_smaller_until_only_the_last_turn_is_left(
    items: list[dict[str, Any]], excess: int, has_memory: bool
) -> None:
    """Whatever the template makes of it: here up to ten tokens more for each message than was thought."""
    conversation = measured(items)
    chosen = plan(conversation, BUDGET)
    memory = Memory(items[-1]["id"], items[:1]) if has_memory and items[-1]["type"] == "message" else None
    draft = Draft(items, conversation, chosen.cut, chosen.cut, "a summary", {}, memory)
    while (size := exact(draft, excess)) > BUDGET.limit:
        smaller = draft.smaller(size - BUDGET.limit)
        if smaller is None:
            assert (draft.cut, draft.summary, draft.memory) == (conversation.starts[-1], None, None)
            break
        assert exact(smaller, excess) < size
        draft = smaller
    assert draft.sent()[-1]["id"] == items[-1]["id"]


def exact(draft: Draft, excess: int) -> int:
    return sum(tokens_of(item) + excess for item in draft.sent())


@given(conversations(), st.data())
def test_memories_are_told_again_in_the_same_words(items: list[dict[str, Any]], data: st.DataObject) -> None:
    """A memory that a turn has stored: each later prompt that holds the turn holds the same text."""
    asked = [item for item in items if item["type"] == "message" and item["role"] == "user"]
    memories = {data.draw(st.sampled_from(asked))["id"]: "Said earlier\n"}
    prompts = [composed(items[:number], num_system(items), None, memories) for number in sends(items)]
    for shorter, longer in pairwise(prompts):
        assert longer[: len(shorter)] == shorter


def test_turn_that_alone_is_too_long_is_sent_alone() -> None:
    items = numbered([said("user", "a"), said("assistant", "b"), said("user", "word " * 500)])
    assert plan(measured(items), BUDGET).cut == 2


def test_nothing_moves_while_all_fits() -> None:
    items = numbered([said("system", "Be brief."), said("user", "a"), said("assistant", "b"), said("user", "c")])
    assert plan(measured(items, SummaryPlace(3, 3)), BUDGET) == Plan(1, None)


def test_cut_is_where_the_summary_ends_if_that_is_far_enough() -> None:
    items = numbered([said("user" if number % 2 == 0 else "assistant", "word " * 20) for number in range(13)])
    assert plan(measured(items, SummaryPlace(6, 12)), BUDGET) == Plan(6, SummaryPlace(6, 12))
    assert plan(measured(items, SummaryPlace(4, 10)), BUDGET) == Plan(8, SummaryPlace(4, 10))


def test_summary_that_came_after_the_question_is_not_used_before_the_next() -> None:
    items = numbered([said("user" if number % 2 == 0 else "assistant", "word " * 20) for number in range(13)])
    assert plan(measured(items, SummaryPlace(6, 13)), BUDGET).summary is None


def test_late_result_keeps_its_call() -> None:
    items = numbered([said("user", "a"), called("c"), said("user", "b"), said("assistant", "x"), returned("c")])
    assert turn_starts(items) == [0]


def test_developer_message_belongs_to_the_question_after_it() -> None:
    items = [said("user", "a"), said("assistant", "b"), said("developer", "c"), said("user", "d")]
    assert turn_starts(items) == [0, 2]


def test_budgets_are_shares_of_what_the_answer_leaves() -> None:
    budget = budget_of(ContextConfig(), 4000, None, 100)
    assert budget == Budget(limit=3000, high=2300, low=1150, step=460, memory=300, summary=300)


@pytest.mark.parametrize(("answer", "limit", "high"), [(16, 3984, 2300), (1500, 2500, 1900), (9999, 2000, 1500)])
def test_long_answer_takes_from_the_conversation_and_a_short_one_moves_nothing(
    answer: int, limit: int, high: int
) -> None:
    budget = budget_of(ContextConfig(), 4000, answer, 100)
    assert (budget.limit, budget.high) == (limit, high)


def test_threshold_is_of_the_whole_prompt() -> None:
    budget = budget_of(ContextConfig(), 4000, None, 100, threshold=1000)
    assert budget.high + 100 + budget.memory + budget.summary == 1000


def test_config_whose_beginning_would_move_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="low_water"):
        ContextConfig(low_water=0.9, summary_step=0.1)


def test_image_stays_in_its_message() -> None:
    image: dict[str, Any] = {"type": "input_image", "image_url": "data:,", "detail": "auto"}
    item = said("user", "Look") | {"content": [image]}
    (sent,) = composed([item], 0, "All so far")
    assert [part["type"] for part in sent["content"]] == ["input_text", "input_image"]
