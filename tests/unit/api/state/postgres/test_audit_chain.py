"""What the chain of safety events shows of what was done to it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.state.postgres.audit_chain import (
    GENESIS,
    AuditRow,
    BrokenRow,
    ChainCheck,
    ChainedRow,
    ChainEnds,
    Link,
    check,
    ends_mac,
    evidence_mac,
    row_hash,
    text_mac,
)

KEY = b"k" * 32
NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "tenant": NAMES,
    "sequence": st.integers(1, 2**62),
    "id": NAMES,
    "request_id": NAMES,
    "at": st.floats(allow_nan=False),
    "direction": NAMES,
    "action": NAMES,
    "policy_version": NAMES,
    "categories": st.lists(NAMES, max_size=3).map(tuple),
    "verdicts": NAMES,
    "text_mac": st.none() | st.binary(max_size=4),
    "evidence_mac": st.none() | st.binary(max_size=4),
}
ROWS = st.fixed_dictionaries(COLUMNS).map(lambda columns: AuditRow(**columns))


def chained(rows: Sequence[AuditRow], key: bytes = KEY) -> tuple[ChainEnds, list[ChainedRow]]:
    """The rows as the chain of one tenant."""
    link, made = GENESIS, list[ChainedRow]()
    for row in rows:
        own = row._replace(tenant="alice", sequence=link.sequence + 1)
        link = Link(own.sequence, row_hash(key, link.hash, own))
        made.append(ChainedRow(own, link.hash))
    return ChainEnds("alice", link, GENESIS, 0.0), made


def a_chain(number: int) -> tuple[ChainEnds, list[ChainedRow]]:
    row = AuditRow("alice", 1, "sfe", "req", 1.0, "input", "blocked", "v1", ("hate",), "[]", None, None)
    return chained([row._replace(id=f"sfe_{place}") for place in range(number)])


@given(st.lists(ROWS, max_size=5))
def test_chain_that_nobody_has_touched_is_sound(rows: list[AuditRow]) -> None:
    ends, made = chained(rows)
    assert check(KEY, ends, made) is None


@given(st.lists(ROWS, min_size=1, max_size=4), st.data())
def test_any_change_of_any_column_is_found(rows: list[AuditRow], data: st.DataObject) -> None:
    ends, made = chained(rows)
    place = data.draw(st.integers(0, len(made) - 1))
    column = data.draw(st.sampled_from(AuditRow._fields))
    changed = made[place].row._replace(**{column: data.draw(COLUMNS[column])})
    is_same = changed == made[place].row and repr(changed) == repr(made[place].row)  # 0.0 equals -0.0
    made[place] = made[place]._replace(row=changed)
    found = check(KEY, ends, made)
    assert found is None if is_same else found is not None and found.sequence == place + 1


@given(st.lists(ROWS, min_size=1, max_size=4), st.data())
def test_change_of_a_hash_is_found(rows: list[AuditRow], data: st.DataObject) -> None:
    ends, made = chained(rows)
    place = data.draw(st.integers(0, len(made) - 1))
    made[place] = made[place]._replace(hash=bytes(32))
    assert check(KEY, ends, made) is not None


@given(ROWS, ROWS)
def test_no_two_rows_have_the_same_hash(one: AuditRow, other: AuditRow) -> None:
    assert (row_hash(KEY, b"", one) == row_hash(KEY, b"", other)) == (repr(one) == repr(other))


@given(st.integers(2, 6), st.data())
def test_events_in_another_order_are_found(number: int, data: st.DataObject) -> None:
    ends, made = a_chain(number)
    moved = data.draw(st.permutations(made))
    assert (check(KEY, ends, moved) is None) == (moved == made)


@given(st.integers(1, 6), st.data())
def test_deletion_anywhere_is_found_where_it_was(number: int, data: st.DataObject) -> None:
    ends, made = a_chain(number)
    place = data.draw(st.integers(0, number - 1))
    found = check(KEY, ends, made[:place] + made[place + 1 :])
    assert found is not None and found.sequence == place + 1


def test_event_that_is_copied_to_another_place_is_found() -> None:
    ends, made = a_chain(3)
    copy = ChainedRow(made[0].row._replace(sequence=2), made[0].hash)
    assert check(KEY, ends, [made[0], copy, made[2]]) == BrokenRow(
        2, "it was changed, or does not follow the one before it"
    )


def test_event_after_the_head_is_found() -> None:
    ends, _ = a_chain(2)
    _, longer = a_chain(3)
    assert check(KEY, ends, longer) == BrokenRow(3, "it is after the head of the chain")


def test_head_that_is_another_event_is_found() -> None:
    ends, made = a_chain(2)
    other = ends._replace(head=Link(2, bytes(32)))
    assert check(KEY, other, made) == BrokenRow(2, "it is not the head of the chain")


def test_events_of_another_tenant_are_found() -> None:
    ends, made = a_chain(2)
    assert check(KEY, ends._replace(tenant="bob"), made) == BrokenRow(1, "it is another tenant's")


def test_chain_without_the_key_cannot_be_made() -> None:
    _, forged = chained([row.row for row in a_chain(3)[1]], key=b"x" * 32)
    assert check(KEY, a_chain(3)[0], forged) is not None


def test_rest_of_a_chain_is_sound_after_its_beginning_was_deleted() -> None:
    ends, made = a_chain(5)
    anchored = ends._replace(anchor=Link(2, made[1].hash))
    assert check(KEY, anchored, made[2:]) is None
    assert check(KEY, anchored, made[1:]) == BrokenRow(3, "event 2 is in its place")


def test_walk_allows_for_events_that_are_appended_meanwhile() -> None:
    before, _ = a_chain(2)
    after, made = a_chain(4)
    walk = ChainCheck(KEY, before)
    assert [walk.take(row) for row in made] == [None] * 4
    assert walk.finish(after.head) is None


@pytest.mark.parametrize("other", [{"head": Link(8, b"h")}, {"anchor": Link(1, b"a")}, {"begins_at": 1.0}])
def test_ends_are_authenticated(other: dict[str, Any]) -> None:
    ends = ChainEnds("alice", Link(9, b"h"), Link(0, b"a"), 0.0)
    assert ends_mac(KEY, ends) == ends_mac(KEY, ChainEnds("alice", Link(9, b"h"), Link(0, b"a"), 0.0))
    assert ends_mac(KEY, ends) != ends_mac(KEY, ChainEnds(**(ends._asdict() | other)))


def test_keyed_hashes_of_different_things_differ() -> None:
    assert text_mac(KEY, b"x") != evidence_mac(KEY, b"x")
    assert text_mac(KEY, b"x") != text_mac(b"x" * 32, b"x")
