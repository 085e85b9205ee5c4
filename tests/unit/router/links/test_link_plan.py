"""Which links are proved and measured, in which order, and how many at a time."""

from functools import partial
from itertools import pairwise

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.messages.ids import WorkerId
from cluster.messages.reports import LinkOrder, WorkerReport
from cluster.messages.transport import EngineVariable, LinkSpeed, WorkerTransport
from router.links.link_classes import NUM_TRIES, TRY_AGAIN_S
from router.links.link_graph import LINKS_AHEAD
from router.links.link_plan import (
    FORGET_S,
    LONGEST_PROBE_S,
    MOST_BACK_OFF_S,
    PROBES_PER_PREFILL,
    RETRY_S,
    WISH_S,
    LinkPlan,
)
from router.prediction.transfer import TransferModels
from router.state import RouterState
from tests.unit.factories import a_decode_report, a_prefill_report
from tests.unit.router.links.link_cluster import SPEED, LinkCluster

P0, P1, D0, D1 = WorkerId("p0"), WorkerId("p1"), WorkerId("d0"), WorkerId("d1")


class Plan:
    """A plan, and the last reports of its workers."""

    def __init__(self, prefills: str = "p0 p1", decodes: str = "d0 d1") -> None:
        self.busy: set[WorkerId] = set()
        self.transfers = TransferModels()
        self.plan = LinkPlan(lambda worker: worker not in self.busy, self.transfers)
        for name in prefills.split():
            self.plan.add(a_prefill_report(name), 0.0)
        for name in decodes.split():
            self.plan.add(a_decode_report(name, ""), 0.0)

    def report(
        self,
        decode: str,
        links: dict[WorkerId, LinkSpeed | None] | None = None,
        probing: WorkerId | None = None,
        now: float = 0.0,
    ) -> LinkOrder | None:
        """The order that the reply has."""
        report = msgspec.structs.replace(a_decode_report(decode, ""), links=links or {}, probing=probing)
        self.plan.reported(report, now)
        order = self.plan.next_order(report.worker, now)
        self.plan.validate()
        return order


@pytest.mark.parametrize(("num_prefill", "num_decode"), [(1, 1), (4, 4), (8, 8), (2, 8), (8, 2)])
def test_small_cluster_is_soon_linked_completely(num_prefill: int, num_decode: int) -> None:
    cluster = LinkCluster(num_prefill, num_decode)
    cluster.run(1.5 * 8 + 5)
    assert cluster.num_links() == num_prefill * num_decode


def test_large_cluster_starts_with_few_prefills_and_no_worker_has_many_at_a_time() -> None:
    """Each of the 10,000 pairs cost ten prefills before, three of them long, and each prefill worker had 100 at a
    time.
    """
    cluster = LinkCluster(100, 100)
    cluster.run(60.0)
    assert set(cluster.most_probes.values()) <= {1, PROBES_PER_PREFILL}
    assert all(len(decode.report.links) >= LINKS_AHEAD for decode in cluster.decodes.values())
    num_linked = dict.fromkeys(cluster.prefills, 0)
    for decode in cluster.decodes.values():
        for prefill in decode.report.links:
            num_linked[prefill] += 1
    assert min(num_linked.values()) >= LINKS_AHEAD
    assert cluster.num_prefills <= 1.5 * LINKS_AHEAD * 100
    assert len(cluster.measured) == 1


def test_new_prefill_worker_in_a_large_cluster_gets_links_within_seconds_and_few_at_a_time() -> None:
    cluster = LinkCluster(100, 100)
    cluster.run(60.0)
    before = cluster.num_prefills
    cluster.add("p100")
    cluster.run(8.0)
    num_links = sum(WorkerId("p100") in decode.report.links for decode in cluster.decodes.values())
    assert num_links >= LINKS_AHEAD
    assert cluster.most_probes[WorkerId("p100")] == PROBES_PER_PREFILL
    assert cluster.num_prefills - before <= LINKS_AHEAD + PROBES_PER_PREFILL


def test_pair_that_a_placement_wanted_comes_before_those_in_advance() -> None:
    plan = Plan("p0 p1 p2 p3", "d0")
    for name in ("p2", "p3"):
        plan.plan.wish(WorkerId(name), D0, 1.0)
    assert plan.report("d0", now=1.0) == LinkOrder(WorkerId("p3"), True)
    assert plan.report("d0", probing=WorkerId("p3"), now=1.25) is None
    order = plan.report("d0", {WorkerId("p3"): SPEED}, now=1.5)
    assert order == LinkOrder(WorkerId("p2"))


@pytest.mark.parametrize(("linked", "expected"), [("p0", "p1"), ("p1", "p0")])
def test_link_in_advance_goes_to_the_prefill_worker_with_the_fewest_links(linked: str, expected: str) -> None:
    plan = Plan()
    links: dict[WorkerId, LinkSpeed | None] = {WorkerId(linked): SPEED}
    plan.plan.reported(msgspec.structs.replace(a_decode_report("d0", ""), links=links), 0.0)
    order = plan.report("d1")
    assert order is not None and order.prefill == expected


def test_wish_is_forgotten_when_it_is_old() -> None:
    plan = Plan(" ".join(f"p{number}" for number in range(LINKS_AHEAD + 1)), "d0")
    ahead: dict[WorkerId, LinkSpeed | None] = {WorkerId(f"p{number}"): SPEED for number in range(LINKS_AHEAD)}
    last = WorkerId(f"p{LINKS_AHEAD}")
    for number in range(LINKS_AHEAD):
        plan.plan.add(a_decode_report(f"e{number}", ""), 0.0)
        plan.plan.reported(msgspec.structs.replace(a_decode_report(f"e{number}", ""), links={last: None}), 0.0)
    assert plan.report("d0", ahead) is None, "all workers have links enough"
    plan.plan.wish(last, D0, 0.0)
    assert plan.report("d0", ahead, now=WISH_S + 0.1) is None
    plan.plan.wish(last, D0, 20.0)
    assert plan.report("d0", ahead, now=20.1) == LinkOrder(last)


def test_doubtful_link_comes_first() -> None:
    plan = Plan("p0 p1 p2", "d0")
    both: dict[WorkerId, LinkSpeed | None] = {P0: SPEED, P1: None}
    plan.plan.reported(msgspec.structs.replace(a_decode_report("d0", ""), links=both), 0.0)
    plan.plan.wish(WorkerId("p2"), D0, 1.0)
    assert plan.report("d0", {P0: SPEED}, now=1.0) == LinkOrder(P1)


def test_doubtful_link_keeps_the_speed_of_its_class() -> None:
    plan = Plan("p0 p1", "d0")
    plan.report("d0", {P0: SPEED, P1: None})
    plan.report("d0", {P0: SPEED}, now=0.25)
    assert plan.report("d0", {P0: SPEED, P1: None}, now=0.5) is None
    assert plan.plan.speed(P1, D0) == SPEED


def test_prefill_worker_has_few_probes_at_a_time() -> None:
    decodes = [f"d{number}" for number in range(PROBES_PER_PREFILL + 1)]
    plan = Plan("p0", " ".join(decodes))
    orders = [plan.report(name) for name in decodes]
    assert [order is not None for order in orders] == [True] * PROBES_PER_PREFILL + [False]
    for name in decodes[:PROBES_PER_PREFILL]:
        assert plan.report(name, probing=P0, now=0.25) is None
    assert plan.report(decodes[-1], now=0.3) is None
    plan.report(decodes[0], {P0: SPEED}, now=0.5)
    assert plan.report(decodes[-1], now=0.5) == LinkOrder(P0)


def test_probe_of_a_decode_worker_that_is_gone_does_not_count() -> None:
    plan = Plan("p0", "d0 d1 d2")
    assert plan.report("d0") and plan.report("d1") and not plan.report("d2")
    plan.plan.forget(D0, 0.1)
    assert plan.report("d2", now=0.2) == LinkOrder(P0)


def test_probe_that_never_ends_stops_counting_for_its_prefill_worker() -> None:
    plan = Plan("p0", "d0 d1 d2")
    assert plan.report("d0") and plan.report("d1")
    for name in ("d0", "d1"):
        plan.report(name, probing=P0, now=0.25)
    assert plan.report("d2", now=LONGEST_PROBE_S) is None
    assert plan.report("d0", probing=P0, now=LONGEST_PROBE_S + 0.1) is None
    assert plan.report("d2", now=LONGEST_PROBE_S + 0.2) is not None


def test_order_whose_reply_was_lost_is_given_again() -> None:
    plan = Plan("p0", "d0")
    assert plan.report("d0") == LinkOrder(P0, True)
    assert plan.report("d0", now=0.25) is None, "the worker works on nothing: the attempt has failed"
    assert plan.report("d0", now=RETRY_S + 0.25) == LinkOrder(P0)


def test_failed_attempt_gives_the_turn_to_another_link() -> None:
    plan = Plan("p0 p1", "d0")
    first = plan.report("d0")
    assert first is not None
    plan.report("d0", probing=first.prefill, now=0.25)
    assert plan.report("d0", now=15.0) is None
    second = plan.report("d0", now=15.6)
    assert second is not None and second.prefill != first.prefill


def test_worker_that_can_prove_nothing_asks_for_fewer_and_fewer_prefills() -> None:
    cluster = LinkCluster(20, 20, probe_s=0.1)
    cluster.failing = {(prefill, decode) for prefill in cluster.prefills for decode in cluster.decodes}
    cluster.run(600.0)
    before = cluster.num_prefills
    cluster.run(60.0)
    assert cluster.num_prefills - before <= 20 * (60.0 / MOST_BACK_OFF_S + 1)
    cluster.failing = set()
    cluster.run(MOST_BACK_OFF_S + 30.0)
    assert all(len(decode.report.links) >= LINKS_AHEAD for decode in cluster.decodes.values())


def test_new_scheduler_learns_links_speeds_and_probes_from_the_reports() -> None:
    cluster = LinkCluster(8, 8)
    cluster.run(2.6)
    cluster.state = RouterState()
    cluster.run(30.0)
    assert cluster.num_links() == 64
    assert set(cluster.most_probes.values()) <= {1, 2}
    num_prefills, measured = cluster.num_prefills, list(cluster.measured)
    cluster.state = RouterState()
    cluster.run(60.0)
    assert (cluster.num_prefills, cluster.measured) == (num_prefills, measured)
    view = {worker.worker: worker.links for worker in cluster.state.view(cluster.now).workers}
    assert view[D0] == dict.fromkeys(cluster.prefills, SPEED)


def test_links_of_a_prefill_worker_that_is_gone_are_forgotten_after_a_minute_of_reports() -> None:
    cluster = LinkCluster(2, 2)
    cluster.run(20.0)
    cluster.kill("p0")
    cluster.run(FORGET_S)
    assert cluster.links("d0").keys() == {"p0", "p1"}
    cluster.run(10.0)
    assert cluster.links("d0").keys() == cluster.links("d1").keys() == {"p1"}


def test_links_of_a_prefill_worker_that_was_silent_for_half_a_minute_are_kept() -> None:
    cluster = LinkCluster(2, 2)
    cluster.run(20.0)
    num_prefills = cluster.num_prefills
    cluster.kill("p0")
    cluster.run(30.0)
    cluster.add("p0")
    cluster.run(FORGET_S + 10.0)
    assert (cluster.num_links(), cluster.num_prefills) == (4, num_prefills)


def on_node(report: WorkerReport, host: str, tls: str = "tcp") -> WorkerReport:
    return msgspec.structs.replace(
        report,
        address=msgspec.structs.replace(report.address, host=host),
        transport=WorkerTransport(settings=(EngineVariable("UCX_TLS", tls, "because"),)),
    )


def test_one_link_of_each_class_is_measured() -> None:
    cluster = LinkCluster(0, 0)
    for number in range(3):
        for host in ("a", "b"):
            cluster.add(f"p-{host}{number}", 0.1, partial(on_node, host=host))
            cluster.add(f"d-{host}{number}", 0.2, partial(on_node, host=host))
    cluster.add("p-slow", 0.3, partial(on_node, host="c", tls="tcp,cuda_copy"))
    cluster.run(60.0)
    classes = {
        ("slow" if prefill == "p-slow" else "usual", prefill.split("-")[1][0] == decode.split("-")[1][0])
        for prefill, decode in cluster.measured
    }
    assert (len(cluster.measured), classes) == (3, {("usual", True), ("usual", False), ("slow", False)})
    view = cluster.state.view(cluster.now)
    assert {speed for worker in view.workers for speed in worker.links.values()} == {SPEED}


def test_link_is_measured_on_workers_without_requests() -> None:
    plan = Plan("p0", "d0")
    plan.busy = {P0}
    assert plan.report("d0") == LinkOrder(P0, False)
    assert plan.report("d0", probing=P0, now=0.25) is None
    assert plan.report("d0", {P0: None}, now=0.5) is None
    assert plan.report("d0", {P0: None}, now=5.0) is None
    plan.busy = {D0}
    assert plan.report("d0", {P0: None}, now=6.0) is None
    plan.busy = set()
    assert plan.report("d0", {P0: None}, now=7.0) == LinkOrder(P0, True)


def test_measurement_that_fails_is_tried_a_few_times() -> None:
    plan, tried_at = Plan("p0", "d0"), list[float]()
    for quarter in range(4 * 120):
        now = quarter / 4
        if plan.report("d0", {P0: None}, now=now) is not None:
            tried_at.append(now)
    assert len(tried_at) == NUM_TRIES
    assert all(later - sooner >= TRY_AGAIN_S for sooner, later in pairwise(tried_at))


def test_speed_of_a_class_is_believed_of_a_link_that_was_never_measured() -> None:
    plan = Plan()
    plan.report("d0", {P0: SPEED})
    plan.report("d1", {P1: None})
    its = plan.plan.class_of(P1, D1)
    assert plan.plan.speed(P1, D1) == SPEED
    assert plan.transfers.link(P1, D1, None, its).seconds(1e9) == pytest.approx(
        SPEED.latency_s + 1e9 / SPEED.bytes_per_s
    )


NAMES_P, NAMES_D = [f"p{number}" for number in range(4)], [f"d{number}" for number in range(4)]


class PlanMachine(RuleBasedStateMachine):
    """Workers come, go, report what they like and lose replies, and no prefill worker has more probes than it may."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.plan = LinkPlan(lambda worker: True, TransferModels())
        self.known: dict[str, WorkerReport] = {}
        self.begin()

    def begin(self) -> None:
        self.orders: dict[str, LinkOrder] = {}
        """What each decode worker was told in the last reply, or works on."""
        self.begun_at: dict[str, float] = {}

    @rule(name=st.sampled_from(NAMES_P))
    def add_prefill(self, name: str) -> None:
        if name not in self.known:
            self.known[name] = a_prefill_report(name)
            self.plan.add(self.known[name], self.now)

    @rule(
        name=st.sampled_from(NAMES_D),
        links=st.dictionaries(st.sampled_from([WorkerId(name) for name in NAMES_P]), st.sampled_from([None, SPEED])),
        changes=st.booleans(),
        is_obeyed=st.booleans(),
    )
    def report(self, name: str, links: dict[WorkerId, LinkSpeed | None], changes: bool, is_obeyed: bool) -> None:
        """`is_obeyed`: the worker works on the order of the last reply; otherwise it has ended or was lost."""
        before = self.known.get(name)
        order = self.orders.get(name) if is_obeyed else None
        if before is None:
            before = self.known[name] = a_decode_report(name, "")
            self.plan.add(before, self.now)
        report = msgspec.structs.replace(before, probing=order.prefill if order else None)
        if changes:
            report = msgspec.structs.replace(report, links=links)
        self.known[name] = report
        self.plan.reported(report, self.now)
        self.orders.pop(name, None)
        given = self.plan.next_order(report.worker, self.now)
        assert given is None or order is None, "it is busy"
        if (current := given or order) is not None:
            self.orders[name] = current
        if given is not None:
            self.begun_at[name] = self.now
            assert given.prefill in self.known
            assert given.measures or given.prefill not in report.links

    @rule(name=st.sampled_from(NAMES_P + NAMES_D), prefill=st.sampled_from(NAMES_P))
    def wish(self, name: str, prefill: str) -> None:
        self.plan.wish(WorkerId(prefill), WorkerId(name), self.now)

    @rule(name=st.sampled_from(NAMES_P + NAMES_D))
    def forget(self, name: str) -> None:
        self.known.pop(name, None)
        self.orders.pop(name, None)
        self.plan.forget(WorkerId(name), self.now)

    @rule(seconds=st.sampled_from([0.25, 1.0, RETRY_S, WISH_S, FORGET_S + 1.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def plan_is_valid(self) -> None:
        self.plan.validate()

    @invariant()
    def prefill_workers_have_few_probes(self) -> None:
        for prefill in NAMES_P:
            probes = [name for name, order in self.orders.items() if order.prefill == prefill]
            recent = [name for name in probes if self.now - self.begun_at[name] <= LONGEST_PROBE_S]
            assert len(recent) <= PROBES_PER_PREFILL

    @invariant()
    def links_to_forget_are_those_of_workers_that_are_gone(self) -> None:
        for name, report in self.known.items():
            gone = set(self.plan.gone_for(WorkerId(name), self.now))
            assert gone <= {prefill for prefill in report.links if prefill not in self.known}


TestPlan = PlanMachine.TestCase
TestPlan.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
