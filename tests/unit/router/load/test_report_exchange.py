"""What a worker sends of its reports is enough for the Scheduler, whoever of both is new, and no more than that."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from cluster.clients.report_deltas import FIRST_STEPS, ReportDeltas
from cluster.messages.ids import Pool, RequestId, WorkerId
from cluster.messages.reports import (
    REPORT_INTERVAL_S,
    EngineShape,
    LinkOrder,
    ReportDelta,
    ReportReply,
    StandingReport,
    StepSample,
    TransferSample,
    WorkerLoad,
    WorkerReport,
)
from cluster.messages.transport import LinkSpeed, Transport, WorkerTransport
from router.links.link_plan import FORGET_S, LOOKS
from router.load.live_workers import REPORT_TIMEOUT_S
from router.load.report_exchange import MOST_SAMPLES_PER_S
from router.state import MOST_KV_MESSAGES_PER_S, RouterState
from tests.expected import present
from tests.unit.factories import a_decode_report, a_prefill_report, an_address, links

D0 = WorkerId("d0")


def steps(number: int) -> list[StepSample]:
    return [StepSample(0, 0, 1, 100, float(place + 1)) for place in range(number)]


class Worker:
    """A worker that reports to a Scheduler, and the last delta that it has sent."""

    def __init__(self, name: str = "d0") -> None:
        self.deltas = ReportDeltas()
        self.standing = a_prefill_report(name) if name.startswith("p") else a_decode_report(name, "p0")
        self.last: ReportDelta | None = None

    def report(self, state: RouterState, now: float, num_running: int = 0, num_steps: int = 0) -> ReportReply:
        report = msgspec.structs.replace(
            self.standing, load=WorkerLoad(num_running=num_running), steps=steps(num_steps), kv_events_through=None
        )
        delta = self.last = self.deltas.delta(report)
        whole = state.exchange.whole(delta)
        if whole is None:
            whole = state.exchange.whole(self.deltas.whole(delta))
        assert whole is not None
        assert same(whole, report)
        state.handle(whole, now)
        return self.deltas.reply(state.exchange.reply(whole, state.reply_to(whole, now)))


def same(whole: WorkerReport, report: WorkerReport) -> bool:
    """But for the steps, of which some are sent, and the version."""
    return msgspec.structs.replace(whole, steps=report.steps, version=0) == report


FULL_REPORT = WorkerReport(
    worker=D0,
    pool=Pool.DECODE,
    address=an_address("d0"),
    load=WorkerLoad(num_running=3, num_waiting=2, kv_cache_usage=0.5, num_open=5),
    max_requests=7,
    shape=EngineShape(kind="engine", kv_capacity_tokens=4096),
    steps=steps(2),
    transfers=[TransferSample(WorkerId("p0"), 100, 0.5)],
    kv_events_through=9,
    transport=WorkerTransport(transports=(Transport.TCP,)),
    links={WorkerId("p0"): LinkSpeed(0.001, 1e9)},
    requests=[RequestId("r")],
    version=1,
    probing=WorkerId("p1"),
    link_failures={WorkerId("p2"): "it took too long"},
)
"""A report whose every field has another value than its default. Its version is the first that a worker sends."""
FULL_REPLY = ReportReply(
    link=LinkOrder(WorkerId("p1"), measures=True),
    gone=(WorkerId("p2"),),
    wants_kv_snapshot=True,
    wants_requests=True,
    kv_events_every_s=0.5,
)
"""A reply of the same kind."""


def defaults(message: msgspec.Struct) -> dict[str, Any]:
    """The defaults of a message, by field. Fields that must be given have none."""
    made = {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(message)
    }
    return {name: default for name, default in made.items() if default is not msgspec.NODEFAULT}


def sent(message: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))


@pytest.mark.parametrize("message", [FULL_REPORT, FULL_REPLY], ids=lambda message: type(message).__name__)
def test_full_messages_have_no_field_at_its_default(message: msgspec.Struct) -> None:
    """A new field needs a value there, or the next tests would not notice that it is lost."""
    assert [name for name, default in defaults(message).items() if getattr(message, name) == default] == []


def test_every_field_of_a_first_report_arrives() -> None:
    assert RouterState().exchange.whole(sent(ReportDeltas().delta(FULL_REPORT))) == FULL_REPORT


def test_every_field_of_a_later_report_arrives() -> None:
    """Only what is not standing has changed, so that the standing part is not sent again."""
    state, deltas = RouterState(), ReportDeltas()
    changes = {name: default for name, default in defaults(FULL_REPORT).items() if not is_standing(name)}
    before = msgspec.structs.replace(FULL_REPORT, load=WorkerLoad(), **changes)
    known = present(state.exchange.whole(deltas.delta(before)))
    state.handle(known, 0.0)
    deltas.reply(state.exchange.reply(known, state.reply_to(known, 0.0)))
    delta = deltas.delta(FULL_REPORT)
    assert delta.standing is None
    assert state.exchange.whole(sent(delta)) == FULL_REPORT


def is_standing(name: str) -> bool:
    return name in StandingReport.__struct_fields__


def test_every_field_of_a_reply_arrives() -> None:
    assert ReportDeltas().reply(sent(RouterState().exchange.reply(FULL_REPORT, FULL_REPLY))) == FULL_REPLY


def test_what_has_not_changed_is_not_sent_again() -> None:
    state, worker = RouterState(), Worker()
    worker.report(state, 0.0)
    first = msgspec.msgpack.encode(worker.last)
    worker.standing = msgspec.structs.replace(worker.standing, links=links(" ".join(f"p{n}" for n in range(500))))
    worker.report(state, 0.2)
    changed = msgspec.msgpack.encode(worker.last)
    worker.report(state, 0.4)
    again = msgspec.msgpack.encode(worker.last)
    assert len(again) < len(first) < len(changed)
    assert len(again) < 200


def test_the_more_workers_there_are_the_rarer_are_the_kv_events_of_each() -> None:
    state, num_workers = RouterState(), 500
    for number in range(num_workers):
        reply = Worker(f"p{number}").report(state, 0.0)
    assert reply.kv_events_every_s == pytest.approx(num_workers / MOST_KV_MESSAGES_PER_S)


def test_reply_has_an_order_when_there_is_something_to_prove_and_is_short_otherwise() -> None:
    state, decode = RouterState(), Worker()
    for number in range(100):
        Worker(f"p{number}").report(state, 0.0)
    decode.standing = msgspec.structs.replace(decode.standing, links=links(" ".join(f"p{n}" for n in range(99))))
    orders = [order for _ in range(100 // LOOKS + 1) if (order := decode.report(state, 0.0).link) is not None]
    assert orders == [LinkOrder(WorkerId("p99"))]
    decode.standing = msgspec.structs.replace(decode.standing, links=links(" ".join(f"p{n}" for n in range(100))))
    assert decode.report(state, 0.25).link is None
    report = present(state.exchange.whole(decode.deltas.delta(decode.standing)))
    assert len(msgspec.msgpack.encode(state.exchange.reply(report, state.reply_to(report, 0.5)))) < 30


def test_links_to_a_worker_that_is_gone_for_long_are_to_be_forgotten() -> None:
    state, decode, prefill = RouterState(), Worker(), Worker("p0")
    prefill.report(state, 0.0)
    assert decode.report(state, 0.0).gone == ()
    for second in range(int(REPORT_TIMEOUT_S) + 1):
        assert decode.report(state, float(second)).gone == ()
    decode.report(state, REPORT_TIMEOUT_S + 0.1)
    for seconds in range(int(FORGET_S)):
        assert decode.report(state, REPORT_TIMEOUT_S + 0.1 + seconds).gone == ()
    assert decode.report(state, REPORT_TIMEOUT_S + 0.2 + FORGET_S).gone == ("p0",)


@pytest.mark.parametrize("num_workers", [1, 1000])
def test_workers_of_one_kind_share_what_their_model_learns_from(num_workers: int) -> None:
    state = RouterState()
    for number in range(num_workers - 1):
        state.handle(a_decode_report(f"other{number}", ""), 0.0)
    worker = Worker()
    num_sent = 0
    worker.report(state, 0.0, num_steps=10)
    for _ in range(40):
        worker.report(state, 0.0, num_steps=10)
        assert worker.last is not None
        num_sent += len(worker.last.steps)
    share = MOST_SAMPLES_PER_S * REPORT_INTERVAL_S / num_workers
    assert abs(num_sent - 40 * min(10.0, share)) <= FIRST_STEPS


@given(st.integers(0, 40))
def test_samples_are_of_the_whole_interval(number: int) -> None:
    deltas = ReportDeltas()
    taken = deltas.delta(msgspec.structs.replace(a_decode_report("d0", ""), steps=steps(number))).steps
    assert len(taken) == min(number, int(FIRST_STEPS))
    assert len({step.seconds for step in taken}) == len(taken)
    assert not taken or max(step.seconds for step in taken) > number / 2


class ReportMachine(RuleBasedStateMachine):
    """Workers change, fall silent and come back, and Schedulers take turns."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.schedulers = [RouterState(), RouterState()]
        self.workers = {name: Worker(name) for name in ("p0", "p1", "d0", "d1")}

    @rule(name=st.sampled_from(["p0", "p1", "d0", "d1"]), scheduler=st.integers(0, 1), num_running=st.integers(0, 5))
    def report(self, name: str, scheduler: int, num_running: int) -> None:
        state = self.schedulers[scheduler]
        self.workers[name].report(state, self.now, num_running)
        state.validate()

    @rule(name=st.sampled_from(["d0", "d1"]), connected=st.sampled_from(["", "p0", "p0 p1"]))
    def change(self, name: str, connected: str) -> None:
        worker = self.workers[name]
        worker.standing = msgspec.structs.replace(worker.standing, links=links(connected))

    @rule(seconds=st.sampled_from([0.25, REPORT_TIMEOUT_S + 1.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(scheduler=st.integers(0, 1))
    def restart(self, scheduler: int) -> None:
        self.schedulers[scheduler] = RouterState()

    @rule(name=st.sampled_from(["p0", "p1", "d0", "d1"]))
    def reply_is_lost(self, name: str) -> None:
        self.workers[name].deltas.delta(self.workers[name].standing)


TestReports = ReportMachine.TestCase
