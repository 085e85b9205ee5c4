"""What an ingress tells the Scheduler, over a link that loses, repeats and delays: no charge outlives its request, and
no request loses its charge.
"""

from collections import deque
from copy import deepcopy
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.clients.scheduler_outbox import LASTING_S, MAX_LASTING, SchedulerOutbox
from cluster.messages.ids import IngressId, RequestId, WorkerId
from cluster.messages.placement import Placement, PlacementRequest
from cluster.messages.scheduler_events import (
    EngineLostWith,
    Events,
    FirstToken,
    HandoffChecked,
    HandoffVerdict,
    OpenRequests,
    RequestClosed,
    SchedulerEvent,
    WorkerLost,
)
from router.ingresses import GRACE_SWEEPS, MAX_GONE, Ingresses
from router.state import RouterState
from tests.expected import of_kind, present
from tests.unit.factories import a_decode_report, a_placement_request, a_prefill_report

INGRESS = IngressId("one")


def closed(request_id: str) -> RequestClosed:
    return RequestClosed(request_id=RequestId(request_id))


def hello(connection: int = 1, ingress: IngressId = INGRESS) -> OpenRequests:
    return OpenRequests(ingress, connection, [])


def first_token(request_id: str) -> FirstToken:
    return FirstToken(request_id=RequestId(request_id))


def test_events_are_numbered_and_kept_until_they_are_acknowledged() -> None:
    outbox = SchedulerOutbox(INGRESS)
    outbox.connected("scheduler", 0.0)
    assert [outbox.put(first_token(f"r{i}"), 0.0).first for i in range(3)] == [1, 2, 3]
    outbox.heard(2)
    assert outbox.connected("scheduler", 0.0)[1] == [Events(3, [first_token("r2")])]
    outbox.heard(3)
    assert outbox.connected("scheduler", 0.0)[1] == []


def test_another_scheduler_process_gets_none_of_the_kept_events() -> None:
    outbox = SchedulerOutbox(INGRESS)
    outbox.connected("scheduler", 0.0)
    outbox.put(closed("r"), 0.0)
    assert outbox.connected("successor", 0.0)[1] == []
    assert outbox.put(closed("s"), 0.0).first == 2


def a_check(num_strikes: int, verdict: HandoffVerdict = HandoffVerdict.COPY_WRONG) -> HandoffChecked:
    return HandoffChecked(
        prefill=WorkerId("p0"), decode=WorkerId("d0"), verdict=verdict, distance=9.0, num_strikes=num_strikes
    )


def test_new_suspicion_counts_again_when_an_old_one_is_forgotten() -> None:
    outbox = SchedulerOutbox(INGRESS)
    outbox.put(a_check(2), 0.0)
    outbox.put(a_check(1), LASTING_S)
    ((message),) = outbox.connected("successor", LASTING_S)[1]
    assert message.events == [a_check(1)]


def test_another_scheduler_process_hears_again_of_lost_engines_and_wrong_handoffs() -> None:
    """Or a request that stops engines, and a pair that hands over wrongly, would begin anew with it."""
    outbox = SchedulerOutbox(INGRESS)
    outbox.connected("scheduler", 0.0)
    lost = EngineLostWith(digest=b"digest", worker=WorkerId("d0"), num_engines_lost=1)
    lost_again = EngineLostWith(digest=b"digest", worker=WorkerId("d1"), num_engines_lost=2)
    for event in (lost, lost_again, a_check(2), a_check(1), a_check(0, HandoffVerdict.AGREES), closed("r")):
        outbox.put(event, 0.0)
    outbox.heard(6)
    assert outbox.connected("scheduler", 1.0)[1] == [], "it has them"
    aged: list[Any] = [msgspec.structs.replace(event, age_s=LASTING_S - 1.0) for event in (lost_again, a_check(2))]
    assert outbox.connected("successor", LASTING_S - 1.0)[1] == [Events(7, aged[:1]), Events(8, aged[1:])]
    assert outbox.connected("third", LASTING_S)[1] == []


def test_request_that_has_finished_is_told_to_no_successor() -> None:
    outbox = SchedulerOutbox(INGRESS)
    outbox.connected("scheduler", 0.0)
    outbox.put(EngineLostWith(digest=b"digest", worker=WorkerId("d0"), num_engines_lost=1), 0.0)
    outbox.put(RequestClosed(request_id=RequestId("r"), digest=b"digest", num_output_tokens=3), 0.0)
    assert outbox.connected("successor", 1.0)[1] == []


def test_request_that_finished_after_the_loss_of_an_engine_is_told_to_a_successor() -> None:
    outbox = SchedulerOutbox(INGRESS)
    lost = EngineLostWith(digest=b"digest", worker=WorkerId("d0"), num_engines_lost=1)
    outbox.put(lost, 0.0)
    outbox.put(RequestClosed(request_id=RequestId("r"), digest=b"digest", num_output_tokens=3, num_engines_lost=1), 0.0)
    assert outbox.connected("successor", 0.0)[1][0].events == [lost]


def test_copy_that_was_placed_before_a_loss_does_not_lower_its_count() -> None:
    outbox = SchedulerOutbox(INGRESS)
    for worker, number in (("d0", 1), ("d1", 2), ("d2", 1)):
        outbox.put(EngineLostWith(digest=b"digest", worker=WorkerId(worker), num_engines_lost=number), 0.0)
    ((message),) = outbox.connected("successor", 1.0)[1]
    assert [of_kind(EngineLostWith, event).num_engines_lost for event in message.events] == [2]


def test_lost_engines_that_are_remembered_take_no_more_than_so_much() -> None:
    outbox = SchedulerOutbox(INGRESS)
    for number in range(MAX_LASTING + 10):
        outbox.put(EngineLostWith(digest=b"%d" % number, worker=WorkerId("d0"), num_engines_lost=1), 0.0)
    again = outbox.connected("scheduler", 0.0)[1]
    assert len(again) == MAX_LASTING
    assert of_kind(EngineLostWith, again[-1].events[0]).digest == b"%d" % (MAX_LASTING + 9)


def test_what_ended_while_the_connection_was_lost_is_learnt_from() -> None:
    """The request is listed as open, so that its charge is there when its end comes."""
    state, ingresses, outbox = RouterState(admits_all=True), Ingresses(), SchedulerOutbox(INGRESS)
    state.handle(a_prefill_report(), 0.0)
    state.handle(a_decode_report(), 0.0)
    outbox.connected("scheduler", 0.0)
    request = a_placement_request("r", digest=b"digest")
    outbox.asks(request)
    state.place(request, 0.0, INGRESS)
    state.handle(EngineLostWith(digest=b"digest", worker=WorkerId("d9"), num_engines_lost=1), 0.0)
    outbox.put(RequestClosed(request_id=request.request_id, digest=b"digest", num_output_tokens=900), 0.0)
    open_requests, kept = outbox.connected("scheduler", 0.0)
    connection = object()
    assert ingresses.introduced(open_requests, connection)
    state.keep_open(INGRESS, frozenset(open_requests.requests), 0.0)
    assert state.view(0.0).workers[1].num_placed == 1
    for message in kept:
        for event in ingresses.take(connection, message):
            state.handle(event, 0.0)
    assert [worker.num_placed for worker in state.view(0.0).workers] == [0, 0]
    again = state.place(a_placement_request("again", digest=b"digest"), 0.0)
    assert isinstance(again, Placement) and again.num_engines_lost == 0


def test_loss_of_a_worker_is_not_said_again() -> None:
    outbox = SchedulerOutbox(INGRESS)
    outbox.connected("scheduler", 0.0)
    outbox.put(WorkerLost(worker=WorkerId("d0")), 0.0)
    outbox.put(closed("r"), 0.0)
    assert outbox.connected("scheduler", 0.0)[1] == [Events(2, [closed("r")])]


def test_request_is_open_from_before_its_placement_to_its_end() -> None:
    outbox = SchedulerOutbox(INGRESS)
    outbox.asks(a_placement_request("r"))
    outbox.asks(a_placement_request("s"))
    outbox.asks(a_placement_request("r"))
    assert outbox.open_requests().requests == ["r", "s"]
    outbox.put(closed("r"), 0.0)
    assert outbox.open_requests().requests == ["s"]


def test_events_for_a_scheduler_that_stays_away_take_no_more_than_so_much() -> None:
    outbox = SchedulerOutbox(INGRESS, max_kept=10)
    outbox.connected("scheduler", 0.0)
    for number in range(15):
        outbox.put(closed(f"r{number}"), 0.0)
    kept = outbox.connected("scheduler", 0.0)[1]
    assert [message.first for message in kept] == list(range(6, 16))


def test_event_that_comes_twice_is_taken_once() -> None:
    ingresses, connection = Ingresses(), object()
    ingresses.introduced(hello(), connection)
    events: list[SchedulerEvent] = [first_token(f"r{i}") for i in range(4)]
    assert ingresses.take(connection, Events(1, events[:2])) == events[:2]
    assert ingresses.take(connection, Events(1, events[:2])) == []
    assert ingresses.take(connection, Events(2, events[1:3])) == events[2:3]
    assert ingresses.take(connection, Events(4, events[3:])) == events[3:]
    assert ingresses.taken_through(connection) == 4


def test_what_an_earlier_connection_still_brings_does_not_count() -> None:
    ingresses, old, new = Ingresses(), object(), object()
    ingresses.introduced(hello(1), old)
    ingresses.introduced(hello(2), new)
    assert not ingresses.introduced(hello(1), old)
    assert (ingresses.speaking(old), ingresses.speaking(new)) == (None, INGRESS)
    assert ingresses.take(old, Events(1, [closed("r")])) == []
    assert ingresses.lost(old) is None
    assert not ingresses.needs_sweep


def test_connection_speaks_for_one_ingress_alone() -> None:
    ingresses, one, other = Ingresses(), object(), object()
    ingresses.introduced(hello(1), one)
    ingresses.introduced(hello(1, IngressId("other")), other)
    assert not ingresses.introduced(hello(2), other)
    assert ingresses.speaking(other) == "other"


def test_ingress_that_comes_back_in_time_is_not_gone() -> None:
    ingresses, old, new = Ingresses(), object(), object()
    ingresses.introduced(hello(1), old)
    ingresses.take(old, Events(1, [closed("r")]))
    assert ingresses.lost(old) == INGRESS
    assert [ingresses.sweep() for _ in range(GRACE_SWEEPS - 1)] == [[]] * (GRACE_SWEEPS - 1)
    ingresses.introduced(hello(2), new)
    assert [ingresses.sweep() for _ in range(GRACE_SWEEPS)] == [[]] * GRACE_SWEEPS
    assert ingresses.take(new, Events(1, [closed("r")])) == []
    ingresses.lost(new)
    assert [ingresses.sweep() for _ in range(GRACE_SWEEPS)][-1] == [INGRESS]
    assert not ingresses.needs_sweep


def a_gone_ingress(ingresses: Ingresses, connection: int = 1) -> None:
    """It has had its first event taken."""
    link = object()
    ingresses.introduced(hello(connection), link)
    ingresses.take(link, Events(1, [closed("r")]))
    ingresses.lost(link)
    assert [ingresses.sweep() for _ in range(GRACE_SWEEPS)][-1] == [INGRESS]
    assert not ingresses.needs_sweep


def test_ingress_that_comes_back_after_its_grace_has_each_event_taken_once() -> None:
    ingresses, new = Ingresses(), object()
    a_gone_ingress(ingresses)
    assert ingresses.introduced(hello(2), new)
    assert ingresses.take(new, Events(1, [closed("r")])) == []
    assert ingresses.take(new, Events(2, [closed("s")])) == [closed("s")]
    ingresses.lost(new)
    assert [ingresses.sweep() for _ in range(GRACE_SWEEPS)][-1] == [INGRESS]


def test_what_an_earlier_connection_brings_after_the_grace_of_its_ingress_does_not_count() -> None:
    ingresses, old = Ingresses(), object()
    ingresses.introduced(hello(1), old)
    a_gone_ingress(ingresses, connection=2)
    assert not ingresses.introduced(hello(1), old)
    assert ingresses.speaking(old) is None
    assert not ingresses.needs_sweep


def test_ingresses_that_are_gone_take_no_more_than_so_much() -> None:
    ingresses, connection = Ingresses(), object()
    a_gone_ingress(ingresses)
    for number in range(MAX_GONE):
        ingresses.introduced(hello(1, IngressId(f"{number}")), connection)
        ingresses.lost(connection)
    for _ in range(GRACE_SWEEPS):
        ingresses.sweep()
    ingresses.introduced(hello(2), connection)
    assert ingresses.taken_through(connection) == 0, "it is forgotten"


class Link:
    """One connection. Each side may find out later than the other that it has ended."""

    def __init__(self) -> None:
        self.to_scheduler: deque[object] = deque()
        self.to_ingress: deque[int] = deque()


class Cancel:
    def __init__(self, request_id: RequestId) -> None:
        self.request_id = request_id


class OutboxMachine(RuleBasedStateMachine):
    """One ingress and one Scheduler. The Scheduler handles what it reads at once as the channel does: posts as they
    come, and the calls among them afterwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.link: Link | None = None
        self.links: list[Link] = []
        """All on which the Scheduler may still hear something."""
        self.number = 0
        self.open: set[RequestId] = set()
        self.start_scheduler()

    def start_scheduler(self) -> None:
        self.epoch = self.number = self.number + 1
        self.state = RouterState(admits_all=True)
        self.state.handle(a_prefill_report(), 0.0)
        self.state.handle(a_decode_report(), 0.0)
        self.ingresses = Ingresses()
        self.charged: set[RequestId] = set()
        """Requests that must be charged while they are open."""
        self.num_taken = self.last_number = 0
        self.speaking: Link | None = None

    # ---- the ingress

    @initialize(max_kept=st.sampled_from([1, 100]))
    def start_ingress(self, max_kept: int) -> None:
        self.outbox = SchedulerOutbox(INGRESS, max_kept)

    @precondition(lambda self: self.link is None)
    @rule()
    def connect(self) -> None:
        self.link = Link()
        self.links.append(self.link)
        open_requests, kept = self.outbox.connected(str(self.epoch), 0.0)
        for message in (open_requests, *kept):
            self.send(message)

    @rule()
    def place(self) -> None:
        self.number += 1
        request = a_placement_request(f"r{self.number}")
        self.open.add(request.request_id)
        self.outbox.asks(request)
        self.send(request)

    @precondition(lambda self: self.link is not None)
    @rule(number=st.integers(1, 3))
    def several_are_placed(self, number: int) -> None:
        for _ in range(number):
            self.place()
        self.all_is_delivered()

    @rule()
    def all_end(self) -> None:
        for request_id in sorted(self.open):
            self.ends(request_id)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def place_again(self, data: st.DataObject) -> None:
        request = a_placement_request(data.draw(st.sampled_from(sorted(self.open))))
        self.outbox.asks(request)
        self.send(request)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.ends(data.draw(st.sampled_from(sorted(self.open))))

    def ends(self, request_id: RequestId) -> None:
        self.open.remove(request_id)
        self.send(Cancel(request_id))
        self.send(self.outbox.put(closed(request_id), 0.0))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def has_first_token(self, data: st.DataObject) -> None:
        self.send(self.outbox.put(first_token(data.draw(st.sampled_from(sorted(self.open)))), 0.0))

    @rule()
    def list_open(self) -> None:
        self.send(self.outbox.open_requests())

    @precondition(lambda self: self.link is not None and self.link.to_ingress)
    @rule()
    def hear(self) -> None:
        self.outbox.heard(present(self.link).to_ingress.popleft())

    @precondition(lambda self: self.link is not None)
    @rule()
    def lose_connection(self) -> None:
        self.link = None

    def send(self, message: object) -> None:
        if self.link is not None:
            self.link.to_scheduler.append(message)

    # ---- the network and the Scheduler

    @precondition(lambda self: self.links)
    @rule(data=st.data(), number=st.integers(1, 8))
    def deliver(self, data: st.DataObject, number: int) -> None:
        self.read(data.draw(st.sampled_from(self.links)), number)

    def read(self, link: Link, number: int) -> None:
        read = [link.to_scheduler.popleft() for _ in range(min(number, len(link.to_scheduler)))]
        calls: list[PlacementRequest] = []
        for message in read:
            match message:
                case OpenRequests():
                    if self.ingresses.introduced(message, link):
                        self.speaking = link
                        self.state.keep_open(message.ingress, frozenset(message.requests), 0.0)
                case Events():
                    self.last_number = max(self.last_number, message.first + len(message.events) - 1)
                    for event in self.ingresses.take(link, message):
                        self.num_taken += 1
                        self.state.handle(event, 0.0)
                case Cancel():
                    calls = [request for request in calls if request.request_id != message.request_id]
                case PlacementRequest():
                    calls.append(message)
        for request in calls:
            if self.ingresses.speaking(link) is not None:
                self.state.place(request, 0.0, INGRESS)
                self.charged.add(request.request_id)

    @precondition(lambda self: self.link is not None)
    @rule()
    def all_is_delivered(self) -> None:
        link = present(self.link)
        self.read(link, len(link.to_scheduler))

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(self.links))
        if through := self.ingresses.taken_through(link):
            link.to_ingress.append(through)

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """With all that was still on its way to the Scheduler."""
        link = data.draw(st.sampled_from(self.links))
        self.links.remove(link)
        self.ingresses.lost(link)
        if link is self.link:
            self.link = None

    @rule()
    def restart_scheduler(self) -> None:
        self.link, self.links = None, []
        self.start_scheduler()

    @rule()
    def sweep(self) -> None:
        for ingress in self.ingresses.sweep():
            assert self.speaking not in self.links, "it has a connection"
            self.state.keep_open(ingress, frozenset(), 0.0)
            self.charged.clear()

    def teardown(self) -> None:
        self.settle()

    @rule()
    def settle(self) -> None:
        if self.link is None:
            self.connect()
        self.list_open()
        for link in self.links:
            self.read(link, len(link.to_scheduler))
        self.list_open()
        link = present(self.link)
        self.read(link, len(link.to_scheduler))
        assert self.charges() <= self.open
        self.outbox.heard(self.ingresses.taken_through(self.link))
        assert deepcopy(self.outbox).connected(str(self.epoch), 0.0)[1] == []

    @invariant()
    def open_requests_stay_charged(self) -> None:
        assert self.charged & self.open <= self.charges()

    @invariant()
    def each_event_is_taken_once(self) -> None:
        assert self.num_taken <= self.last_number

    @invariant()
    def state_is_valid(self) -> None:
        self.state.validate()

    def charges(self) -> set[RequestId]:
        return {request_id for worker in self.state.workers.by_id.values() for request_id in worker.charges}


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(max_examples=80, stateful_step_count=60)
