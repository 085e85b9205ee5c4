"""The roster and its copies: an ingress that has missed any number of answers has the workers that live."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.clients.known_workers import KnownWorkers
from cluster.messages.ids import WorkerId
from cluster.messages.views import RosterChange
from router.load import roster as roster_module
from router.load.roster import Roster
from tests.unit.factories import an_entry

NAMES = ["p0", "p1", "d0", "d1", "d2"]
steps = st.lists(st.tuples(st.sampled_from(["put", "remove", "ask", "lose", "double", "anew"]), st.sampled_from(NAMES)))


@given(steps, st.sampled_from([2, 100]))
def test_copy_is_equal_after_each_answer_whatever_was_lost_doubled_or_late(
    history: list[tuple[str, str]], max_changes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roster_module, "MAX_CHANGES", max_changes)
        roster, copy, live = Roster(), KnownWorkers(), set[str]()
        answers: list[RosterChange] = []
        for what, name in history:
            match what:
                case "put":
                    roster.put(an_entry(name))
                    live.add(name)
                case "remove":
                    roster.remove(WorkerId(name))
                    live.discard(name)
                case "anew":  # another Scheduler process answers
                    roster = Roster()
                    for worker in live:
                        roster.put(an_entry(worker))
                    copy.begin_anew()
                    answers.clear()
                case "lose":
                    roster.since(copy.version, 0)
                case "double":
                    for answer in answers:
                        copy.take(answer)
                case "ask":
                    answers.append(roster.since(copy.version, len(live)))
                    copy.take(answers[-1])
                    assert copy.by_id == {name: an_entry(name) for name in live}
                    assert copy.readiness.num_links == len(live)
            roster.validate(frozenset(WorkerId(name) for name in live))


def test_answer_costs_what_has_changed() -> None:
    roster, copy = Roster(), KnownWorkers()
    for number in range(1000):
        roster.put(an_entry(f"d{number}"))
    copy.take(roster.since(0, 0))
    roster.remove(WorkerId("d7"))
    roster.put(an_entry("d8"))
    change = roster.since(copy.version, 0)
    assert (change.joined, change.left) == ([], ["d7"])


def test_cluster_is_ready_once_a_pair_can_hand_over() -> None:
    copy = KnownWorkers()
    assert not copy.readiness.is_ready
    roster = Roster()
    for name in NAMES:
        roster.put(an_entry(name))
    copy.take(roster.since(0, 0))
    assert (copy.readiness.num_prefill, copy.readiness.num_decode, copy.readiness.is_ready) == (2, 3, False)
    copy.take(roster.since(copy.version, 1))
    assert copy.readiness.is_ready
