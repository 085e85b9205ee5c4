import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.messages.ids import RequestId
from kvtransfer.lease_terms import LeaseEnd, LeaseId, Promise, Refusal, ended_leases, stats_key
from prefill.lease_table import Leases, LeaseState

OFFER_S, PROMISE_S = 30.0, 4.0
A, R, PROMPT, OTHER_PROMPT = LeaseId("a"), RequestId("r"), b"prompt", b"other prompt"
INGRESS, DECODE, OTHER_DECODE = "ingress", "decode", "other decode"


def offered() -> Leases:
    leases = Leases(OFFER_S, PROMISE_S)
    leases.grant(A, R, PROMPT, INGRESS, now=0.0)
    return leases


def redeemed() -> Leases:
    leases = offered()
    assert leases.redeem(A, PROMPT, DECODE, now=1.0) == Promise(PROMISE_S)
    return leases


def test_handoff_is_used_once() -> None:
    assert redeemed().redeem(A, PROMPT, OTHER_DECODE, now=1.0) == Refusal("the handoff has been used")


@pytest.mark.parametrize(
    ("lease", "digest", "now", "why"),
    [
        (LeaseId("another worker's"), PROMPT, 0.0, "another worker's"),
        (A, OTHER_PROMPT, 0.0, "another prompt"),
        (A, PROMPT, OFFER_S, "expired"),
    ],
)
def test_handoff_that_is_not_this_one_or_too_late_is_refused(
    lease: LeaseId, digest: bytes, now: float, why: str
) -> None:
    answer = offered().redeem(lease, digest, DECODE, now)
    assert isinstance(answer, Refusal)
    assert why in answer.why


def test_handoff_that_was_withdrawn_is_refused_before_the_engine_has_freed_it() -> None:
    leases = offered()
    assert leases.withdraw(R, INGRESS) == [A]
    assert leases.redeem(A, PROMPT, DECODE, now=0.0) == Refusal("the lease has been released")


def test_promise_is_extended_for_its_holder_while_it_runs() -> None:
    leases = redeemed()
    assert leases.extend(A, DECODE, now=4.0) == Promise(PROMISE_S)
    assert leases.expire(now=7.9) == []
    assert isinstance(leases.extend(A, OTHER_DECODE, now=5.0), Refusal)
    assert isinstance(leases.extend(A, DECODE, now=8.0), Refusal)
    assert leases.expire(now=8.0) == [A]


def test_offer_cannot_be_extended() -> None:
    assert isinstance(offered().extend(A, DECODE, now=0.0), Refusal)


def test_promise_holds_whoever_leaves() -> None:
    leases = redeemed()
    assert leases.withdraw(R, INGRESS) == leases.holder_gone(INGRESS) == leases.holder_gone(DECODE) == []
    assert leases.give_back(A, OTHER_DECODE) == []
    assert leases.give_back(A, DECODE) == [A]


def test_decode_worker_may_give_back_what_it_has_not_redeemed_yet() -> None:
    leases = offered()
    assert leases.give_back(A, DECODE) == [A]
    assert leases.give_back(A, DECODE) == []


def test_running_promises_are_what_the_engine_must_outlast() -> None:
    leases = redeemed()
    leases.grant(LeaseId("b"), R, PROMPT, INGRESS, now=0.0)
    assert leases.redeemed() == [A]
    leases.give_back(A, DECODE)
    assert leases.redeemed() == []


def test_offer_ends_with_the_connection_it_was_made_on() -> None:
    leases = offered()
    assert leases.holder_gone("another ingress") == []
    assert leases.holder_gone(INGRESS) == [A]


@pytest.mark.parametrize(
    ("how", "cause"),
    [(LeaseEnd.RELEASED, LeaseEnd.EXPIRED), (LeaseEnd.READ, LeaseEnd.READ), (LeaseEnd.EXPIRED, LeaseEnd.EXPIRED)],
)
def test_lease_that_ran_out_is_counted_once_by_what_ended_it(how: LeaseEnd, cause: LeaseEnd) -> None:
    leases = offered()
    assert leases.expire(now=OFFER_S) == [A]
    assert leases.expire(now=OFFER_S + 1) == []
    assert (leases.ended(A, how), leases.ended(A, how), len(leases)) == (cause, None, 0)


def test_engine_s_report_of_ended_leases_is_understood() -> None:
    stats = {"bytes_transferred": [4], stats_key(LeaseEnd.READ): ["a"], stats_key(LeaseEnd.RELEASED): ["b", "c"]}
    assert ended_leases(stats) == [("a", LeaseEnd.READ), ("b", LeaseEnd.RELEASED), ("c", LeaseEnd.RELEASED)]
    assert ended_leases({}) == []


class LeaseMachine(RuleBasedStateMachine):
    """Any order of events, with an engine that frees blocks when it is told to and at the end of a read. Blocks that a
    running promise covers are never freed but for its holder; every lease ends once; none outlives its time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases(OFFER_S, PROMISE_S)
        self.now = 0.0
        self.kept: set[LeaseId] = set()
        """Blocks that the engine keeps."""
        self.told: set[LeaseId] = set()
        self.promised: dict[LeaseId, tuple[str, float]] = {}
        self.used: set[LeaseId] = set()
        self.granted_at: dict[LeaseId, float] = {}
        self.causes: dict[LeaseId, LeaseEnd] = {}

    holders = st.sampled_from([INGRESS, "ingress 2", DECODE, OTHER_DECODE])
    numbers = st.integers(0, 5)

    def tell(self, leases: list[LeaseId], holder: str | None = None) -> None:
        for lease in leases:
            promised_to, until = self.promised.get(lease, (None, 0.0))
            assert self.now >= until or promised_to == holder
            assert lease not in self.told
            self.told.add(lease)

    @rule(request=numbers, holder=holders)
    def grant(self, request: int, holder: str) -> None:
        lease = LeaseId(f"lease-{len(self.granted_at)}")
        self.leases.grant(lease, RequestId(str(request)), str(request).encode(), holder, self.now)
        self.kept.add(lease)
        self.granted_at[lease] = self.now

    @rule(data=st.data(), holder=holders, digest=numbers)
    def redeem(self, data: st.DataObject, holder: str, digest: int) -> None:
        lease = self.any_lease(data)
        answer = self.leases.redeem(lease, str(digest).encode(), holder, self.now)
        if isinstance(answer, Promise):
            assert lease in self.kept - self.told - self.used
            self.used.add(lease)
            self.promised[lease] = (holder, self.now + answer.remaining_s)

    @rule(data=st.data(), holder=holders)
    def extend(self, data: st.DataObject, holder: str) -> None:
        lease = self.any_lease(data)
        if lease in self.kept and isinstance(answer := self.leases.extend(lease, holder, self.now), Promise):
            assert self.promised[lease][0] == holder
            assert self.now < self.promised[lease][1]
            self.promised[lease] = (holder, self.now + answer.remaining_s)

    @rule(request=numbers, holder=holders)
    def withdraw(self, request: int, holder: str) -> None:
        self.tell(self.leases.withdraw(RequestId(str(request)), holder))

    @rule(data=st.data(), holder=holders)
    def give_back(self, data: st.DataObject, holder: str) -> None:
        self.tell(self.leases.give_back(self.any_lease(data), holder), holder)

    @rule(holder=holders)
    def holder_goes(self, holder: str) -> None:
        self.tell(self.leases.holder_gone(holder))

    @rule(data=st.data())
    def engine_frees_what_it_was_told(self, data: st.DataObject) -> None:
        if self.told & self.kept:
            self.end(data.draw(st.sampled_from(sorted(self.told & self.kept))), LeaseEnd.RELEASED)

    @rule(data=st.data())
    def decode_engine_has_read(self, data: st.DataObject) -> None:
        if self.used & self.kept:
            self.end(data.draw(st.sampled_from(sorted(self.used & self.kept))), LeaseEnd.READ)

    @rule(seconds=st.floats(0.0, OFFER_S))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(self.leases.expire(self.now))

    @invariant()
    def leases_are_valid(self) -> None:
        self.tell(self.leases.expire(self.now))
        self.leases.validate(self.now)

    @invariant()
    def open_leases_are_the_blocks_that_are_kept(self) -> None:
        assert len(self.leases) == len(self.kept)
        assert self.leases.count(LeaseState.ENDING) == len(self.told & self.kept)

    @invariant()
    def nothing_outlives_its_time_untold(self) -> None:
        for lease in self.kept - self.told:
            until = self.promised[lease][1] if lease in self.promised else self.granted_at[lease] + OFFER_S
            assert self.now < until

    def end(self, lease: LeaseId, how: LeaseEnd) -> None:
        cause = self.leases.ended(lease, how)
        assert cause is not None
        assert lease not in self.causes
        self.causes[lease] = cause
        self.kept.discard(lease)
        self.promised.pop(lease, None)

    def any_lease(self, data: st.DataObject) -> LeaseId:
        return data.draw(st.sampled_from([LeaseId("unknown"), *sorted(self.granted_at)]))


TestLeases = LeaseMachine.TestCase
