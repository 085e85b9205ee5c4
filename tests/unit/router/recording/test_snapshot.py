"""Objects that are captured and restored, and snapshots that are no good."""

from collections import Counter, OrderedDict, deque
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.messages.ids import SloClass
from cluster.slo import SloConfig
from router.recording.log_files import KEPT
from router.recording.snapshot import MAX_DEPTH, SnapshotError, SnapshotPart, capture, encodable, restore
from router.replay.log_reader import class_of
from router.state import RouterState
from router.turns import Turns


class Thing:
    """Its module is made to look like one of ours."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


Thing.__module__ = "router.thing"


def known(name: str) -> type | None:
    return Thing if name == "router.thing:Thing" else class_of(name)


def as_read(parts: list[SnapshotPart]) -> list[SnapshotPart]:
    encoded = msgspec.msgpack.encode([encodable(part) for part in parts])
    return msgspec.msgpack.decode(encoded, type=list[SnapshotPart])


def again(thing: Thing, into: Thing | None = None) -> Any:
    fresh = into or Thing(**dict.fromkeys(vars(thing)))
    restore(as_read(capture(thing, KEPT)), fresh, known)
    return fresh


leaves = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 200), st.floats(allow_nan=False), st.binary())
keys = st.one_of(st.integers(-9, 1 << 70), st.binary(max_size=3), st.tuples(st.booleans()), st.sampled_from(SloClass))
values = st.recursive(
    st.one_of(leaves, st.text(max_size=5), st.sampled_from(SloClass)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(keys, inner, max_size=4),
        st.frozensets(keys, max_size=3),
        st.sets(keys, max_size=3),
    ),
    max_leaves=20,
)


@given(values)
def test_what_is_restored_equals_what_was_captured(value: object) -> None:
    restored = again(Thing(value=value)).value
    assert restored == value
    assert type(restored) is type(value)


def test_containers_keep_their_kinds_their_order_and_their_bounds() -> None:
    ordered = OrderedDict([("b", 1), ("a", 2)])
    restored = again(Thing(queue=deque([1, (2,)], maxlen=2), ordered=ordered, counted=Counter("aab")))
    restored.queue.append(3)
    assert list(restored.queue) == [(2,), 3]
    assert list(restored.ordered) == ["b", "a"]
    assert restored.counted["none"] == 0


def test_objects_that_refer_to_each_other_do_so_again() -> None:
    large = {b"a": 1 << 90, b"b": 1 << 90}
    inner: Any = Thing(name="inner")
    outer = Thing(first=inner, several=[inner, inner], large=large)
    inner.outer = outer
    restored = again(outer)
    assert restored.several[0] is restored.several[1] is restored.first
    assert restored.first.outer is restored
    assert restored.large == large


def test_functions_and_config_are_those_of_the_fresh_object() -> None:
    def now() -> str:
        return "now"

    then = Thing(ask=lambda: "then", slo=SloConfig(), inner=Thing(ask=lambda: "then", count=3))
    slo = SloConfig()
    fresh = Thing(ask=now, slo=slo, inner=Thing(ask=now, count=0))
    restored = again(then, fresh)
    assert (restored.ask(), restored.inner.ask(), restored.inner.count) == ("now", "now", 3)
    assert restored.slo is slo


def test_function_that_the_fresh_object_does_not_have_is_an_error() -> None:
    with pytest.raises(SnapshotError, match="mark"):
        again(Thing(several=[lambda: None]))


@pytest.mark.parametrize("foreign", [object(), iter([1])], ids=["object", "iterator"])
def test_object_of_a_foreign_class_cannot_be_captured(foreign: object) -> None:
    with pytest.raises(SnapshotError, match="cannot have"):
        capture(Thing(foreign=foreign), KEPT)


def test_chain_without_end_is_an_error() -> None:
    chain = Thing()
    for _ in range(MAX_DEPTH + 1):
        chain = Thing(next=chain)
    with pytest.raises(SnapshotError, match="chain"):
        capture(chain, KEPT)


@pytest.mark.parametrize(
    "name", ["os:system", "router.state:nothing", "subprocess:Popen", "router.turns:Turns", "router.state:a.b", ""]
)
def test_snapshot_names_classes_of_the_scheduler_s_state_only(name: str) -> None:
    assert class_of(name) is None


def test_snapshot_of_something_else_is_an_error() -> None:
    with pytest.raises(SnapshotError, match="no snapshot of a RouterState"):
        restore(as_read(capture(RouterState().load, KEPT)), RouterState(), class_of)
    with pytest.raises(SnapshotError, match="does not have"):
        restore(as_read(capture(Turns[str, int](), KEPT)), RouterState(), class_of)


junk = st.recursive(
    st.one_of(st.none(), st.integers(-2, 12), st.text(max_size=2), st.binary(max_size=2)),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=40)  # each makes a state
@given(
    nodes=st.lists(st.lists(junk, min_size=1, max_size=5), max_size=5),
    spoil=st.sampled_from([None, "router.state:RouterState", "cluster.messages.ids:SloClass"]),
)
def test_junk_is_an_error_and_nothing_else(nodes: list[list[Any]], spoil: str | None) -> None:
    layouts = [(spoil, ["_workers", "load"])] if spoil else []
    with pytest.raises(SnapshotError):
        restore([SnapshotPart([[0, 0, [0, 1]], *nodes], layouts)], RouterState(max_indexed_blocks=1024), class_of)
