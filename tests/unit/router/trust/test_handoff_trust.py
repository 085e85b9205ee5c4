import msgspec
import pytest

from cluster.messages.ids import WorkerId
from cluster.messages.placement import HandoffTerms, PlacementRequest
from cluster.messages.reports import EngineShape
from cluster.messages.scheduler_events import HandoffChecked, HandoffVerdict
from kvtransfer.tolerance import MIN_TOLERANCE, PRIOR_TOLERANCE
from kvtransfer.verify import MAX_TOLERANCE
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report
from tests.unit.fake_ports import pairs_first

P0, D0 = WorkerId("p0"), WorkerId("d0")


def a_state(*kinds: str, rounds_coarsely: bool = False) -> RouterState:
    """A prefill worker and a decode worker for each kind, all linked."""
    state = RouterState(policy=pairs_first, admits_all=True)
    state.handle(a_prefill_report("p0"), 0.0)
    for number, kind in enumerate(kinds or ("a",)):
        shape = EngineShape(kind=kind, rounds_coarsely=rounds_coarsely)
        report = msgspec.structs.replace(a_decode_report(f"d{number}", "p0"), shape=shape)
        state.handle(report, 0.0)
    return state


def checked(verdict: HandoffVerdict, distance: float = 0.01, strikes: int = 0, decode: str = "d0") -> HandoffChecked:
    return HandoffChecked(prefill=P0, decode=WorkerId(decode), verdict=verdict, distance=distance, num_strikes=strikes)


def terms(state: RouterState, excluded: str = "", request: PlacementRequest | None = None) -> HandoffTerms | None:
    request = request or a_placement_request(excluded=frozenset({WorkerId(excluded)}))
    answer = state.place(request, 0.0)
    assert not isinstance(answer, type(None))
    return getattr(answer, "handoff", None)


def tolerance(state: RouterState, excluded: str = "") -> float:
    found = terms(state, excluded)
    assert found is not None
    return found.tolerance


@pytest.mark.parametrize("verdict", [HandoffVerdict.AGREES, HandoffVerdict.CLEARED])
def test_placements_carry_what_all_checks_have_taught(verdict: HandoffVerdict) -> None:
    state = a_state()
    assert tolerance(state) >= PRIOR_TOLERANCE
    for _ in range(200):
        state.handle(checked(verdict), 0.0)
    assert tolerance(state) == MIN_TOLERANCE
    state.validate()


@pytest.mark.parametrize("verdict", [v for v in HandoffVerdict if v.is_strike])
def test_wrong_handoffs_teach_nothing(verdict: HandoffVerdict) -> None:
    state = a_state()
    before = tolerance(state)
    for _ in range(200):
        state.handle(checked(verdict, 1.9, strikes=1), 0.0)
    assert tolerance(state) == before


def test_kinds_of_engines_learn_for_themselves() -> None:
    state = a_state("a", "b")
    for _ in range(200):
        state.handle(checked(HandoffVerdict.AGREES, decode="d1"), 0.0)
    assert tolerance(state, excluded="d0") == MIN_TOLERANCE
    assert tolerance(state, excluded="d1") >= PRIOR_TOLERANCE


def test_engines_that_round_coarsely_begin_with_the_largest_tolerance() -> None:
    assert tolerance(a_state(rounds_coarsely=True)) == MAX_TOLERANCE


def test_placement_on_a_suspected_pair_says_so_and_one_that_cannot_be_verified_avoids_it() -> None:
    state = a_state()
    state.handle(checked(HandoffVerdict.COPY_WRONG, 9.0, strikes=1), 0.0)
    found = terms(state)
    assert found is not None
    assert found.num_strikes == 1
    assert terms(state, request=a_placement_request(can_verify=False)) is None


def test_checks_of_unknown_workers_do_no_harm() -> None:
    state = RouterState()
    for verdict in HandoffVerdict:
        state.handle(checked(verdict, strikes=2), 0.0)
    state.validate()
