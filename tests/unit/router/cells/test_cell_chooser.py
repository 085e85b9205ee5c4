"""CellChooser: which cell a request goes to."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.messages.ids import CellName, RequestId
from cluster.messages.placement import PlacementRequest
from router.cells.cell_chooser import SLACK_TOKENS, CellChooser, work_of

NAMES = [CellName(f"cell {number}") for number in range(8)]
LONG = 30_000
"""Prompt tokens, of which few fill the slack of a cell."""


def a_chooser(number: int = 4, capacity: float = 4.0, load_bound: float = 1.25) -> CellChooser:
    chooser = CellChooser(load_bound)
    for name in NAMES[:number]:
        chooser.set_cell(name, capacity=capacity, is_open=True)
    return chooser


def a_request(request_id: str, *blocks: str, tokens: int | None = None, attempt: int = 1) -> PlacementRequest:
    return PlacementRequest(
        request_id=RequestId(request_id),
        num_prompt_tokens=16 * len(blocks) + 1 if tokens is None else tokens,
        block_hashes=[block.encode() for block in blocks],
        attempt=attempt,
    )


def first_cells(chooser: CellChooser, number: int = 1000) -> list[CellName]:
    """The cells of prompts that share nothing."""
    return [chooser.order(a_request(f"{key}", f"prompt {key}"))[0] for key in range(number)]


def test_all_ingresses_prefer_the_same_cell_in_any_order_of_cells() -> None:
    one, other = CellChooser(), CellChooser()
    for name in NAMES:
        one.set_cell(name, capacity=4, is_open=True)
    for name in reversed(NAMES):
        other.set_cell(name, capacity=4, is_open=True)
    assert first_cells(one) == first_cells(other)


def test_choice_is_the_same_in_every_version() -> None:
    """Otherwise a rolling update would move all conversations."""
    order = a_chooser(4).order(a_request("r", "prompt"))
    assert order == [NAMES[number] for number in (2, 1, 0, 3)]


def test_cells_get_keys_by_their_capacity() -> None:
    chooser = a_chooser(2, capacity=2)
    chooser.set_cell(NAMES[2], capacity=4, is_open=True)
    shares = Counter(first_cells(chooser, 4000))
    assert shares[NAMES[2]] == pytest.approx(2000, rel=0.1)
    assert shares[NAMES[0]] == pytest.approx(1000, rel=0.15)


@pytest.mark.parametrize("number", [2, 4, 7])
def test_cell_that_joins_takes_only_the_keys_that_become_its_own(number: int) -> None:
    chooser = a_chooser(number)
    before = first_cells(chooser)
    chooser.set_cell(NAMES[7], capacity=4, is_open=True)
    moved = [now for then, now in zip(before, first_cells(chooser), strict=True) if then != now]
    assert set(moved) == {NAMES[7]}
    assert len(moved) == pytest.approx(1000 / (number + 1), rel=0.25)


def test_cell_that_leaves_moves_only_its_own_keys() -> None:
    chooser = a_chooser(4)
    before = first_cells(chooser)
    chooser.remove_cell(NAMES[1])
    after = first_cells(chooser)
    assert all(then == now or then == NAMES[1] for then, now in zip(before, after, strict=True))
    assert set(after) == {NAMES[0], NAMES[2], NAMES[3]}


def test_cell_that_changes_its_capacity_a_little_moves_few_keys() -> None:
    chooser = a_chooser(4, capacity=10)
    before = first_cells(chooser)
    chooser.set_cell(NAMES[0], capacity=11, is_open=True)
    assert sum(then != now for then, now in zip(before, first_cells(chooser), strict=True)) < 40


def test_cell_that_drains_gets_nothing_and_keeps_its_requests() -> None:
    chooser = a_chooser(2)
    request = a_request("r", "prompt")
    home = chooser.order(request)[0]
    chooser.placed(request, home)
    chooser.set_cell(home, capacity=4, is_open=False)
    assert home not in {name for key in range(100) for name in chooser.order(a_request(f"{key}", f"{key}"))}
    assert chooser.order(a_request("r", "prompt", attempt=2)) == [name for name in NAMES[:2] if name != home]
    assert chooser.cell_of(RequestId("r")) == home


def test_without_an_open_cell_there_is_nothing_to_ask() -> None:
    chooser = a_chooser(2)
    for name in NAMES[:2]:
        chooser.set_cell(name, capacity=4, is_open=False)
    assert chooser.order(a_request("r", "prompt")) == []
    assert CellChooser().order(a_request("r")) == []


def test_request_that_is_placed_anew_stays_in_its_cell() -> None:
    chooser = a_chooser(4)
    first, *_, last = chooser.order(a_request("r", "prompt"))
    chooser.placed(a_request("r", "prompt"), last)
    again = chooser.order(a_request("r", "prompt", attempt=2))
    assert again[0] == last
    assert sorted(again) == sorted(NAMES[:4])
    assert first != last


def test_conversations_behind_one_system_prompt_are_spread() -> None:
    chooser, system = a_chooser(4), [f"system {number}" for number in range(70)]
    for number in range(40):
        request = a_request(f"{number}", *system, f"chat {number}")
        chooser.placed(request, chooser.order(request)[0])
    shares = Counter(chooser.order(a_request(f"{n}", *system, f"new {n}"))[0] for n in range(1000))
    assert min(shares[name] for name in NAMES[:4]) > 200


@pytest.mark.parametrize("load_bound", [1.0, 1.25, 2.0])
@pytest.mark.parametrize("num_prompts", [1, 3, 100_000])
def test_bound_is_kept_whatever_prompts_come(load_bound: float, num_prompts: int) -> None:
    """One prompt again and again, a few, and prompts that share nothing. All remain open."""
    chooser, chance = a_chooser(4, capacity=1, load_bound=load_bound), random.Random(1)
    loads, most_work = Counter[CellName](), LONG + 2_000
    for number in range(400):
        request = a_request(f"{number}", f"prompt {chance.randrange(num_prompts)}", tokens=LONG)
        name = chooser.order(request)[0]
        chooser.placed(request, name)
        loads[name] += work_of(request)
        allowed = max(load_bound * (loads.total() + most_work) / 4, SLACK_TOKENS) + most_work
        assert max(loads.values()) <= allowed
    chooser.validate()


def test_cells_below_their_slack_are_not_passed_over() -> None:
    chooser = a_chooser(4, capacity=4)
    requests = [a_request(f"{number}", "prompt", tokens=10_000) for number in range(8)]
    for request in requests:
        chooser.placed(request, chooser.order(request)[0])
    assert len({chooser.cell_of(request.request_id) for request in requests}) == 1


def test_turns_of_a_conversation_have_one_cell_and_one_more_while_it_is_full() -> None:
    chooser = a_chooser(4, capacity=1)
    turns = [a_request(f"r{turn}", *(f"block {index}" for index in range(turn + 1))) for turn in range(9)]
    orders = [chooser.order(turn) for turn in turns]
    home, other = orders[0][:2]
    assert orders == orders[:1] * 9
    chooser.placed(a_request("long", tokens=1_000_000), home)
    assert [chooser.order(turn)[0] for turn in turns] == [other] * 9
    chooser.ended(RequestId("long"))
    assert chooser.order(turns[0])[0] == home


def test_cell_that_was_removed_and_added_keeps_what_it_has() -> None:
    chooser = a_chooser(4)
    *_, last = chooser.order(a_request("r", "prompt"))
    chooser.placed(a_request("r", "prompt"), last)
    chooser.remove_cell(last)
    chooser.set_cell(last, capacity=4, is_open=True)
    assert chooser.order(a_request("r", "prompt", attempt=2))[0] == last


def test_prompt_without_a_full_block_goes_to_the_cell_with_the_least_load() -> None:
    chooser = a_chooser(3)
    chooser.placed(a_request("r1"), NAMES[0])
    chooser.placed(a_request("r2"), NAMES[2])
    assert chooser.order(a_request("r3"))[0] == NAMES[1]


def test_cell_that_comes_back_does_not_count_what_it_had_before() -> None:
    chooser = a_chooser(2)
    chooser.placed(a_request("r1"), NAMES[0])
    chooser.remove_cell(NAMES[0])
    assert chooser.cell_of(RequestId("r1")) == NAMES[0]
    chooser.set_cell(NAMES[0], capacity=4, is_open=True)
    chooser.ended(RequestId("r1"))
    chooser.ended(RequestId("r1"))
    assert chooser.cell_of(RequestId("r1")) is None
    chooser.validate()


def test_one_cell_costs_nothing() -> None:
    chooser = a_chooser(1)
    request = a_request("r", "prompt")
    assert chooser.order(request) == [NAMES[0]]
    chooser.placed(request, NAMES[0])
    assert chooser.num_remembered == 0


def test_prompts_that_are_all_different_take_no_memory_when_they_have_ended() -> None:
    chooser = a_chooser(4)
    for number in range(20_000):
        request = a_request(f"{number}", f"prompt {number}", f"end {number}")
        chooser.placed(request, chooser.order(request)[0])
        chooser.ended(RequestId(f"{number - 50}"))
        assert chooser.num_remembered <= 100
    chooser.validate()


@pytest.mark.parametrize("load_bound", [0.99, 0.0, -1.0, float("nan"), float("inf")])
def test_bound_that_no_cells_can_keep_is_refused(load_bound: float) -> None:
    with pytest.raises(ValueError, match="load_bound"):
        CellChooser(load_bound)


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("nan"), float("inf")])
def test_capacity_that_is_none_is_refused(capacity: float) -> None:
    with pytest.raises(ValueError, match="number of its workers"):
        CellChooser().set_cell(NAMES[0], capacity=capacity, is_open=True)


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 9), min_size=2), st.data())
def test_removal_of_any_cell_leaves_the_order_of_the_others(
    capacities: dict[CellName, int], data: st.DataObject
) -> None:
    chooser = CellChooser()
    for name, capacity in capacities.items():
        chooser.set_cell(name, capacity=capacity, is_open=True)
    request = a_request("r", data.draw(st.text(min_size=1)))
    before = chooser.order(request)
    removed = data.draw(st.sampled_from(sorted(capacities)))
    chooser.remove_cell(removed)
    assert chooser.order(request) == [name for name in before if name != removed]


class Choosing(RuleBasedStateMachine):
    """Cells come, drain and go while requests are placed, placed anew and end."""

    def __init__(self) -> None:
        super().__init__()
        self.chooser = CellChooser()
        self.open_cells: set[CellName] = set()
        self.requests: dict[RequestId, CellName] = {}

    @rule(name=st.sampled_from(NAMES), capacity=st.integers(1, 8), is_open=st.booleans())
    def set_cell(self, name: CellName, capacity: int, is_open: bool) -> None:
        self.chooser.set_cell(name, capacity=capacity, is_open=is_open)
        self.open_cells = self.open_cells | {name} if is_open else self.open_cells - {name}

    @rule(name=st.sampled_from(NAMES))
    def remove_cell(self, name: CellName) -> None:
        self.chooser.remove_cell(name)
        self.open_cells -= {name}

    @rule(number=st.integers(0, 9), blocks=st.lists(st.sampled_from("abc"), max_size=4), tokens=st.integers(1, 200_000))
    def place(self, number: int, blocks: list[str], tokens: int) -> None:
        chained = ["".join(blocks[: end + 1]) for end in range(len(blocks))]
        request_id = RequestId(f"{number}")
        known = self.requests.get(request_id)
        request = a_request(request_id, *chained, tokens=tokens, attempt=2 if known else 1)
        order = self.chooser.order(request)
        assert sorted(order) == sorted(self.open_cells)
        if order:
            self.chooser.placed(request, order[0])
            self.requests[request_id] = order[0]

    @rule(number=st.integers(0, 9))
    def end(self, number: int) -> None:
        self.chooser.ended(RequestId(f"{number}"))
        self.requests.pop(RequestId(f"{number}"), None)

    @invariant()
    def holds(self) -> None:
        self.chooser.validate()
        for number in range(10):
            assert self.chooser.cell_of(RequestId(f"{number}")) == self.requests.get(RequestId(f"{number}"))


TestChoosing = Choosing.TestCase
TestChoosing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
