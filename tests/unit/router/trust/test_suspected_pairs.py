"""Two strikes: what one wrong handoff, several at once, and good ones in between do to a pair."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.messages.ids import WorkerId
from cluster.messages.scheduler_events import HandoffChecked, HandoffVerdict
from router.trust.suspected_pairs import MAX_SUSPECTS, NUM_CLEARING, PAIR_QUARANTINE_S, SuspectedPairs

P0, P1, D0 = WorkerId("p0"), WorkerId("p1"), WorkerId("d0")
PAIR = (P0, D0)
WRONG = [HandoffVerdict.COPY_WRONG, HandoffVerdict.PREFILL_WRONG, HandoffVerdict.UNCLEAR]


def strike(number: int, verdict: HandoffVerdict = HandoffVerdict.COPY_WRONG, age_s: float = 0.0) -> HandoffChecked:
    return HandoffChecked(prefill=P0, decode=D0, verdict=verdict, distance=9.0, num_strikes=number, age_s=age_s)


def good(verdict: HandoffVerdict = HandoffVerdict.AGREES) -> HandoffChecked:
    return HandoffChecked(prefill=P0, decode=D0, verdict=verdict, distance=0.1)


def test_first_strike_has_every_handoff_verified_and_bars_what_cannot_be() -> None:
    pairs = SuspectedPairs()
    assert (pairs.num_strikes(PAIR), pairs.barred(False, 0.0)) == (0, frozenset())
    pairs.checked(strike(1), 0.0)
    assert pairs.num_strikes(PAIR) == 1
    assert pairs.barred(True, 0.0) == frozenset()
    assert pairs.barred(False, 0.0) == {PAIR}


def test_second_strike_convicts_for_a_while_and_leaves_a_suspect() -> None:
    pairs = SuspectedPairs()
    pairs.checked(strike(1), 0.0)
    pairs.checked(strike(2), 1.0)
    assert pairs.barred(True, PAIR_QUARANTINE_S) == {PAIR}
    assert pairs.barred(True, 1.0 + PAIR_QUARANTINE_S) == frozenset()
    assert pairs.num_strikes(PAIR) == 1


def test_handoffs_that_were_under_way_together_are_one_strike() -> None:
    pairs = SuspectedPairs()
    for _ in range(5):
        pairs.checked(strike(1), 0.0)
    assert (pairs.num_strikes(PAIR), pairs.barred(True, 0.0)) == (1, frozenset())


def test_good_handoffs_in_a_row_clear_a_suspect() -> None:
    pairs = SuspectedPairs()
    pairs.checked(strike(1), 0.0)
    for _ in range(NUM_CLEARING - 1):
        pairs.checked(good(), 0.0)
    pairs.checked(strike(1), 0.0)
    for verdict in [HandoffVerdict.AGREES, HandoffVerdict.CLEARED] * (NUM_CLEARING // 2):
        assert pairs.num_strikes(PAIR) == 1
        pairs.checked(good(verdict), 0.0)
    assert (pairs.num_strikes(PAIR), pairs.barred(False, 0.0)) == (0, frozenset())


def test_conviction_that_is_told_late_ends_when_it_would_have_ended() -> None:
    pairs = SuspectedPairs()
    pairs.checked(strike(2, age_s=PAIR_QUARANTINE_S - 1.0), 1000.0)
    assert pairs.barred(True, 1000.5) == {PAIR}
    assert pairs.barred(True, 1001.0) == frozenset()


def test_worker_that_is_gone_leaves_nothing_behind() -> None:
    pairs = SuspectedPairs()
    pairs.checked(strike(2), 0.0)
    pairs.forget(P1)
    assert pairs.barred(False, 0.0) == {PAIR}
    pairs.forget(D0)
    assert (pairs.num_strikes(PAIR), pairs.barred(False, 0.0)) == (0, frozenset())


def test_oldest_of_too_many_suspicions_is_dropped() -> None:
    pairs, suspected = SuspectedPairs(), [(WorkerId(f"p{number}"), D0) for number in range(MAX_SUSPECTS + 1)]
    for prefill, _ in suspected:
        pairs.checked(msgspec.structs.replace(strike(1), prefill=prefill), 0.0)
    assert pairs.barred(False, 0.0) == frozenset(suspected[1:])


class AnyChecks(RuleBasedStateMachine):
    """Verdicts in any order, doubled, late, and of placements that knew of any number of strikes."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = SuspectedPairs()
        self.now = 0.0
        self.is_clean = True
        """No handoff was wrong."""

    @rule(number=st.integers(0, 3), verdict=st.sampled_from(WRONG), age_s=st.floats(0, 100))
    def wrong(self, number: int, verdict: HandoffVerdict, age_s: float) -> None:
        self.pairs.checked(strike(number, verdict, age_s), self.now)
        self.is_clean = False
        assert self.pairs.num_strikes(PAIR) == 1
        assert PAIR in self.pairs.barred(False, self.now)

    @rule(verdict=st.sampled_from([HandoffVerdict.AGREES, HandoffVerdict.CLEARED]), number=st.integers(0, 25))
    def good(self, verdict: HandoffVerdict, number: int) -> None:
        for _ in range(number):
            self.pairs.checked(good(verdict), self.now)

    @rule(seconds=st.floats(0, PAIR_QUARANTINE_S))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def clean_pair_is_never_barred(self) -> None:
        self.pairs.validate()
        assert self.pairs.barred(True, self.now) <= self.pairs.barred(False, self.now)
        if self.is_clean:
            assert not self.pairs.barred(False, self.now)
            assert self.pairs.num_strikes(PAIR) == 0


AnyChecks.TestCase.settings = settings(stateful_step_count=20)
TestAnyChecks = AnyChecks.TestCase
