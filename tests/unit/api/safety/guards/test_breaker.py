"""A breaker leaves alone what does not answer, and finds out by one call at a time when it is back."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from api.safety.guards.breaker import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    MOST_FAILURES,
    WINDOW,
    Bulkhead,
    CallEnd,
    CircuitBreaker,
)

ENDS = st.sampled_from(CallEnd)


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(MOST_FAILURES):
        end_next(breaker, CallEnd.FAILED, now)
    return breaker


def end_next(breaker: CircuitBreaker, end: CallEnd, now: float) -> None:
    permit = breaker.start(now)
    assert permit is not None
    breaker.end(permit, end, now)


@given(st.lists(ENDS, max_size=60))
def test_opens_as_soon_as_too_many_of_the_last_calls_have_failed(ends: list[CallEnd]) -> None:
    breaker = CircuitBreaker()
    known: list[CallEnd] = []
    for end in ends:
        end_next(breaker, end, 0.0)
        known += [end] if end is not CallEnd.UNKNOWN else []
        has_failed = known[-WINDOW:].count(CallEnd.FAILED) >= MOST_FAILURES
        assert breaker.is_closed is not has_failed
        if has_failed:
            return


def test_open_breaker_lets_one_call_probe_after_its_wait() -> None:
    breaker = opened()
    assert breaker.start(FIRST_WAIT_S * 0.99) is None
    assert breaker.start(FIRST_WAIT_S) is not None
    assert breaker.start(FIRST_WAIT_S + 1000) is None


def test_answered_probe_closes() -> None:
    breaker = opened()
    end_next(breaker, CallEnd.ANSWERED, FIRST_WAIT_S)
    assert breaker.is_closed
    for _ in range(MOST_FAILURES - 1):
        end_next(breaker, CallEnd.FAILED, FIRST_WAIT_S)
    assert breaker.is_closed


def test_failed_probes_double_the_wait_to_its_bound() -> None:
    breaker, now, wait_s = opened(), 0.0, FIRST_WAIT_S
    for _ in range(10):
        assert breaker.start(now + wait_s * 0.99) is None
        now += wait_s
        end_next(breaker, CallEnd.FAILED, now)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
    assert wait_s == LONGEST_WAIT_S


def test_probe_that_is_given_up_leaves_the_next_call_to_probe() -> None:
    breaker = opened()
    end_next(breaker, CallEnd.UNKNOWN, FIRST_WAIT_S)
    assert not breaker.is_closed
    end_next(breaker, CallEnd.ANSWERED, FIRST_WAIT_S)
    assert breaker.is_closed


@given(ENDS)
def test_call_from_before_it_opened_says_nothing(end: CallEnd) -> None:
    breaker = CircuitBreaker()
    early = breaker.start(0.0)
    assert early is not None
    for _ in range(MOST_FAILURES):
        end_next(breaker, CallEnd.FAILED, 0.0)
    breaker.end(early, end, 0.5)
    assert not breaker.is_closed and breaker.start(FIRST_WAIT_S * 0.99) is None


class BreakerOnAnyDay(RuleBasedStateMachine):
    """Calls start, and end in any order and way, while time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = CircuitBreaker()
        self.now = 0.0
        self.running: list[int] = []
        self.begun_open: set[int] = set()

    @rule(seconds=st.floats(0, 2 * LONGEST_WAIT_S))
    def time_goes_on(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_call_starts(self) -> None:
        was_closed = self.breaker.is_closed
        permit = self.breaker.start(self.now)
        assert permit is not None or not was_closed
        if permit is not None:
            self.running.append(permit)
            if not was_closed:
                assert permit not in self.begun_open
                self.begun_open.add(permit)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), end=ENDS)
    def a_call_ends(self, data: st.DataObject, end: CallEnd) -> None:
        permit = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        was_closed = self.breaker.is_closed
        self.breaker.end(permit, end, self.now)
        if self.breaker.is_closed and not was_closed:
            assert end is CallEnd.ANSWERED and permit in self.begun_open

    @invariant()
    def at_most_one_probe_runs(self) -> None:
        if not self.breaker.is_closed:
            assert len([permit for permit in self.running if permit == max(self.begun_open, default=None)]) <= 1

    def teardown(self) -> None:
        """A service that answers again is used again."""
        for permit in self.running:
            self.breaker.end(permit, CallEnd.UNKNOWN, self.now)
        end_next(self.breaker, CallEnd.ANSWERED, self.now + LONGEST_WAIT_S)
        assert self.breaker.is_closed


TestBreakerOnAnyDay = BreakerOnAnyDay.TestCase


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=50))
def test_bulkhead_has_no_more_inside_than_it_may(most: int, comes: list[bool]) -> None:
    bulkhead, inside = Bulkhead(most, most), 0
    for is_coming in comes:
        if is_coming:
            assert bulkhead.enter("t") is (inside < most)
            inside = min(inside + 1, most)
        elif inside:
            bulkhead.leave("t")
            inside -= 1
    assert bulkhead.num_inside == inside


def test_bulkhead_keeps_room_for_other_tenants() -> None:
    bulkhead = Bulkhead(5, 3)
    assert [bulkhead.enter("a") for _ in range(4)] == [True, True, True, False]
    assert [bulkhead.enter("b") for _ in range(3)] == [True, True, False]
    bulkhead.leave("b")
    assert not bulkhead.enter("a") and bulkhead.enter("c")
    bulkhead.leave("a")
    assert bulkhead.enter("a")
