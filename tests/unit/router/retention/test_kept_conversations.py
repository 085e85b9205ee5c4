"""Which conversations are kept, and what their next prompts say of it."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from router.retention.kept_conversations import MOST_DROPPED, KeptConversations
from router.retention.return_times import EDGES_S, ReturnTimes

MOST, KNOWN = 40, 100
TENANT, OTHER_TENANT = 7, 8


class Order:
    """Keeps what it is told to, and checks that it is told soundly."""

    def __init__(self) -> None:
        self.kept: dict[bytes, None] = {}
        self.first: list[bytes] = []

    def keep(self, blocks: Sequence[bytes]) -> None:
        assert not self.kept.keys() & set(blocks)
        self.kept.update(dict.fromkeys(blocks))

    def let_go(self, blocks: Sequence[bytes]) -> None:
        for block in blocks:
            del self.kept[block]

    def take_first(self, blocks: Sequence[bytes]) -> None:
        assert not self.kept.keys() & set(blocks)
        self.first += blocks


def chain(*names: str) -> list[bytes]:
    """Hashes of blocks, each of all names up to its own."""
    return [f"{'/'.join(names[: i + 1]):>8}".encode() for i in range(len(names))]


def a_table(most: int = MOST) -> tuple[KeptConversations, Order]:
    order = Order()
    return KeptConversations(most, KNOWN, order, ReturnTimes()), order


def waiting(
    table: KeptConversations,
    blocks: list[bytes],
    now: float = 0.0,
    num_prompt: int | None = None,
    tenant: int = TENANT,
) -> None:
    """A conversation whose answer has called a tool."""
    num_prompt = num_prompt or len(blocks)
    table.ended(blocks, num_prompt, tenant, now)
    table.awaits(blocks[num_prompt - 1][-8:], 0, now)


def test_conversation_that_waits_for_a_tool_is_kept_until_its_prompt_has_the_blocks() -> None:
    table, order = a_table()
    waiting(table, chain("a", "b", "c"))
    assert list(order.kept) == chain("a", "b", "c")
    back = table.came(chain("a", "b", "c", "d"), TENANT, 1.0)
    assert list(order.kept) == chain("a", "b", "c")
    assert back is not None
    table.admitted(back)
    assert not order.kept
    assert (table.counts.returned, table.counts.hit_blocks) == (1, 3)


def test_chat_is_not_kept() -> None:
    table, order = a_table()
    table.ended(chain("a", "b", "c"), 3, TENANT, 0.0)
    assert not order.kept


def test_conversation_that_does_not_come_back_is_let_go_and_counted() -> None:
    table, order = a_table()
    waiting(table, chain("a", "b"))
    assert table.next_due < EDGES_S[-1]
    table.expire(table.next_due)
    assert not order.kept
    assert table.counts.expired == 1


def test_late_return_keeps_later_ones_longer() -> None:
    table, order = a_table()
    for step in range(60):
        now = 1000.0 * step
        waiting(table, chain(f"{step}", "b"), now)
        table.expire(now + 40.0)
        table.came(chain(f"{step}", "b", "c"), TENANT, now + 40.0)
    assert table.counts.late >= 1
    waiting(table, chain("x", "y"), 1e6)
    table.expire(1e6 + 39.0)
    assert order.kept


def test_answer_that_the_next_prompt_does_not_have_is_taken_first() -> None:
    """As where reasoning is left out of the next prompt."""
    table, order = a_table()
    waiting(table, chain("a", "b", "c", "thought"), num_prompt=3)
    assert table.came(chain("a", "b", "c", "said", "tool"), TENANT, 1.0) is not None
    assert order.first == chain("a", "b", "c", "thought")[3:]
    assert list(order.kept) == chain("a", "b", "c")


def test_edited_history_supersedes_what_came_after_the_edit() -> None:
    table, order = a_table()
    waiting(table, chain("sys", "a", "b", "old", "x"))
    assert table.came(chain("sys", "a", "b", "new"), TENANT, 1.0) is not None
    assert order.first == chain("sys", "a", "b", "old", "x")[3:]


def test_other_conversation_with_the_same_system_prompt_supersedes_nothing() -> None:
    table, order = a_table()
    waiting(table, chain("sys", "tools", "a"))
    waiting(table, chain("sys", "tools", "b"))
    assert table.came(chain("sys", "tools", "c", "d"), TENANT, 1.0) is None
    assert not order.first
    assert len(order.kept) == 4


def test_bound_lets_go_of_those_that_have_waited_longest() -> None:
    table, order = a_table(most=4)
    waiting(table, chain("a", "b"), 0.0)
    waiting(table, chain("c", "d"), 5.0)
    waiting(table, chain("e", "f"), 6.0)
    assert set(order.kept) == {*chain("c", "d"), *chain("e", "f")}
    assert table.counts.dropped == 1


def test_few_give_way_to_one_that_needs_the_place_of_many() -> None:
    table, order = a_table()
    for number in range(MOST):
        waiting(table, chain(f"{number}"))
    waiting(table, chain(*(f"{number} of many" for number in range(MOST))))
    assert table.counts.dropped == MOST_DROPPED + 1
    assert len(order.kept) == MOST - MOST_DROPPED
    table.validate()


def test_prompt_of_another_tenant_is_no_next_step_behind_a_public_prefix() -> None:
    table, order = a_table()
    waiting(table, chain("public", "prefix", "a"))
    assert table.came(chain("public", "prefix", "b", "c"), OTHER_TENANT, 1.0) is None
    assert (set(order.kept), order.first) == (set(chain("public", "prefix", "a")), [])
    assert table.came(chain("public", "prefix", "a", "b"), TENANT, 2.0) is not None


def test_block_that_ends_prompts_of_two_tenants_names_no_conversation() -> None:
    table, order = a_table()
    waiting(table, chain("public", "prefix"))
    waiting(table, chain("public", "prefix"), tenant=OTHER_TENANT)
    assert not order.kept
    assert table.came(chain("public", "prefix", "a"), TENANT, 1.0) is None


def test_kept_conversation_outlasts_many_answers_after_which_nothing_is_kept() -> None:
    table, order = a_table()
    waiting(table, chain("a", "b", "c"))
    for chat in range(KNOWN):
        table.ended(chain(f"{chat}", "x", "y", "z"), 4, TENANT, 1.0)
        table.validate()
    assert set(order.kept) == set(chain("a", "b", "c"))
    assert table.counts.dropped == 0


def test_conversation_beyond_the_bound_is_not_kept() -> None:
    table, order = a_table(most=2)
    waiting(table, chain("a", "b", "c"))
    assert not order.kept


def test_word_about_an_unknown_prompt_a_second_word_and_a_late_one_do_nothing() -> None:
    table, order = a_table()
    table.awaits(b"unknown!", 0, 0.0)
    table.ended(chain("a"), 1, TENANT, 0.0)
    table.awaits(chain("a")[0], 0, 100.0)
    assert not order.kept
    table.awaits(chain("a")[0], 0, 1.0)
    assert not order.kept
    table.validate()


def test_prompt_that_was_not_computed_is_not_known() -> None:
    table, _ = a_table()
    table.ended([], 0, TENANT, 0.0)
    table.ended(chain("a"), 2, TENANT, 0.0)
    assert table.came(chain("a", "b"), TENANT, 1.0) is None


def test_chats_that_end_with_the_same_system_prompt_are_not_taken_for_next_steps_of_each_other() -> None:
    """Questions shorter than a block. Else chats would seem to come back at once, and would be kept."""
    table, order = a_table()
    for chat in range(300):
        table.came(chain("sys", "tem"), TENANT, float(chat))
        table.ended(chain("sys", "tem"), 2, TENANT, chat + 0.5)
        table.validate()
    for chat in range(300, 600):
        table.came(chain("sys", "tem", f"{chat}"), TENANT, float(chat))
        table.ended(chain("sys", "tem", f"{chat}"), 3, TENANT, chat + 0.5)
        table.validate()
    assert not order.kept
    assert table.counts.returned == table.counts.expired == 0


STEP = st.tuples(
    st.sampled_from(["ended", "awaits", "came", "admitted", "expire"]),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    st.integers(0, 12),
    st.floats(0.0, 40.0),
    st.sampled_from([TENANT, OTHER_TENANT]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=60), st.integers(1, 20))
def test_invariants_hold_whatever_happens(steps: list[tuple[str, list[str], int, float, int]], most: int) -> None:
    order = Order()
    table = KeptConversations(most, 30, order, ReturnTimes())
    now, returned = 0.0, []
    for what, names, number, later_s, tenant in steps:
        blocks = chain(*names)
        now += later_s
        match what:
            case "ended":
                table.ended(blocks, number, tenant, now)
            case "awaits":
                table.awaits(blocks[-1][-8:], 0, now)
            case "came":
                returned.append(table.came(blocks, tenant, now))
            case "admitted" if returned and (one := returned.pop()) is not None:
                table.admitted(one)
            case "expire":
                table.expire(now)
        table.validate()
        assert len(order.kept) == table.counts.kept_blocks <= most
    for one in returned:
        if one is not None:
            table.admitted(one)
    table.expire(now + 2 * EDGES_S[-1])
    assert not order.kept
    assert table.next_due == float("inf")
