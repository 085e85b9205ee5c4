"""Every message between processes arrives as it was sent. The protocol itself says which messages there are."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import pytest

from cluster.errors import ErrorMessage, WorkerBusy
from cluster.messages.generation import FinishReason, PromptTokenSources, TokenDelta, TokenLogprob
from cluster.messages.ids import IngressId, Path, Pool, RequestId, SloClass, WorkerId
from cluster.messages.kv_events import KvChange, KvEvents, KvTier
from cluster.messages.kv_format import KvFormat
from cluster.messages.operations import (
    DistrustedPair,
    DrainAnswer,
    DrainAsk,
    LinkDoubt,
    PathCount,
    PathReason,
    SchedulerStatus,
    UnprovedLink,
    WorkerCondition,
    WorkerStatus,
)
from cluster.messages.placement import HandoffTerms, Pinned, Placement, Prediction, Rejection, Slo
from cluster.messages.quality import WorkerQuarantine
from cluster.messages.reports import (
    DeltaReply,
    EngineShape,
    LinkOrder,
    ReportDelta,
    StandingReport,
    StepSample,
    TransferSample,
    WorkerLoad,
)
from cluster.messages.retention import ToolWait
from cluster.messages.scaling import EngineReading, LoadReading, OfferedRequest, PoolReading, ScalingAsk
from cluster.messages.scheduler_events import (
    EngineLostWith,
    Events,
    FirstToken,
    HandoffChecked,
    HandoffVerdict,
    OpenRequests,
    Pause,
    PrefillDone,
    RequestClosed,
    SchedulerEvent,
    WorkerLeft,
    WorkerLost,
)
from cluster.messages.timeline import TimelineStage
from cluster.messages.transport import EngineVariable, Transport, WorkerTransport
from cluster.messages.views import ClusterView, QueuedRequest, RosterChange, RosterEntry
from cluster.rpc import protocol
from cluster.rpc.frames import Method
from cluster.rpc.protocol import LeaseClaim, Redeem, Start, StreamFailed
from kvtransfer.handoff import PrefillResult, PulledBlocks
from kvtransfer.lease_terms import LeaseId, Promise, Refusal
from tests.unit.factories import (
    a_decode_view,
    a_delta,
    a_handoff,
    a_placement_request,
    a_prefill_result,
    a_prefill_view,
    a_request,
    an_address,
    ids,
    links,
)

R, P0, D0 = RequestId("r"), WorkerId("p0"), WorkerId("d0")
LEASE = LeaseId("r-internal")
PREDICTION = Prediction(Path.PREFILL_DECODE, P0, D0, 0.1, 0.02, 0.3, 0.4, 0.5, 0.6, holds_first=True)
PLACEMENT = Placement(
    path=Path.PREFILL_DECODE,
    prefill=P0,
    decode=D0,
    why="cheapest",
    slo=Slo(1.0, 0.05),
    predicted=PREDICTION,
    considered=(PREDICTION,),
    handoff=HandoffTerms(0.3, 1),
)
GENERATE = a_request(
    sampling_params=b"\x00\xff", num_sequences=2, reasoning_ended=False, reasoning_parser_kwargs={"a": [1]}
)
TRANSPORT = WorkerTransport(transports=(Transport.TCP,), settings=(EngineVariable("UCX_TLS", None, "free"),))
SHAPE = EngineShape(kind="a", kv_capacity_tokens=64, kv_format=KvFormat(digest="d", settings=(("dtype", "bfloat16"),)))
STANDING = StandingReport(
    Pool.DECODE,
    an_address("d0"),
    8,
    SHAPE,
    TRANSPORT,
    links("p0"),
)
LOAD = WorkerLoad(num_running=1, num_waiting=2, kv_cache_usage=0.5, num_open=3)
STEPS, TRANSFERS = [StepSample(1, 2, 3, 4, 0.5)], [TransferSample(P0, 40, 0.01)]
DECODE_VIEW = msgspec.structs.replace(a_decode_view("d0", 2, connected="p0"), transport=TRANSPORT)
EVENTS: list[SchedulerEvent] = [
    PrefillDone(request_id=R),
    FirstToken(request_id=R),
    RequestClosed(request_id=R, digest=b"\xff", num_output_tokens=3, num_engines_lost=1, ttft_s=0.1, tpot_s=0.01),
    WorkerLost(worker=D0),
    HandoffChecked(prefill=P0, decode=D0, verdict=HandoffVerdict.UNCLEAR, distance=float("inf"), num_strikes=1),
    EngineLostWith(digest=b"\xff", worker=D0, num_engines_lost=2, age_s=1.5),
]
DELTAS = [
    a_delta(1, 2),
    TokenDelta(3, [], FinishReason.STOP, "</s>", PromptTokenSources(1, 2, 3), (b"\x00", b"")),
    TokenDelta(0, [7], FinishReason.LENGTH, 42, top_logprobs=[TokenLogprob(7, -0.5)]),
    TokenDelta(0, [7], stages=(TimelineStage("pull_transfer", 0.1, 0.2, notes={"bytes": 5, "why": "cold"}),)),
]
STATUS = SchedulerStatus(
    epoch=3,
    up_s=1.5,
    workers=[
        WorkerStatus(
            worker=D0,
            pool=Pool.DECODE,
            host="10.0.0.1",
            condition=WorkerCondition.DRAINING,
            report_age_s=0.1,
            num_placed=1,
            num_open=2,
            num_running=3,
            num_waiting=4,
            num_leases=0,
            max_requests=8,
            kv_usage=0.5,
            kv_capacity_tokens=64,
        )
    ],
    num_open=1,
    waiting={SloClass.BATCH: 2},
    oldest_wait_s=0.3,
    unproved=[UnprovedLink(prefill=P0, decode=D0, doubt=LinkDoubt.FAILED, error="no route", retry_s=1.5)],
    num_unproved=1,
    distrusted=[DistrustedPair(prefill=P0, decode=D0, num_strikes=2, barred_s=0.0)],
    paths=[PathCount(reason=PathReason.DEARER, num=2, mean_prompt_tokens=100.5, mean_new_tokens=10.0)],
    num_quarantined=0,
)

ARGUMENTS: dict[Method[Any, Any], list[Any]] = {
    protocol.PLACE: [
        a_placement_request(excluded=ids("p0 d0"), path=Path.PREFILL_DECODE, block_hashes=[b"\xff" * 8]),
        a_placement_request(path=Path.DECODE, pinned=Pinned(None, D0)),
    ],
    protocol.QUARANTINE: [WorkerQuarantine({D0: "3 of 4 answers differ"})],
    protocol.OPEN_REQUESTS: [OpenRequests(IngressId("i"), 2, [R])],
    protocol.EVENTS: [Events(7, EVENTS)],
    protocol.HEARD: [7],
    protocol.PAUSE: [Pause(R, 2)],
    protocol.LEAVING: [WorkerLeft(worker=D0, engine_silent_s=2.5)],
    protocol.REPORT: [
        ReportDelta(D0, 1, STANDING, LOAD, STEPS, TRANSFERS, 7, [R], P0),
        ReportDelta(D0, 1, None, LOAD, [], [], None, None),
    ],
    protocol.KV_EVENTS: [
        KvEvents(D0, 3, True, False, [KvChange(KvTier.HOST, True, [b"\xff" * 8]), KvChange(KvTier.GPU, False, None)])
    ],
    protocol.REPLACED: [7],
    protocol.ROSTER: [0],
    protocol.VIEW: [None],
    protocol.QUEUE: [None],
    protocol.STATUS: [None],
    protocol.DRAIN: [DrainAsk(worker=D0, drains=True, force=True)],
    protocol.LOCATE: [D0],
    protocol.LOAD: [ScalingAsk([]), ScalingAsk([D0])],
    protocol.PREFILL: [GENERATE],
    protocol.WITHDRAW: [R],
    protocol.REDEEM: [Redeem(LEASE, D0, b"\xff" * 16)],
    protocol.EXTEND: [LeaseClaim(LEASE, D0)],
    protocol.GIVE_BACK: [LeaseClaim(LEASE, D0)],
    protocol.ANSWER: [None],
    protocol.START: [Start(1, GENERATE, a_handoff()), Start(2, GENERATE, None)],
    protocol.STOP: [1],
    protocol.AWAIT_TOOLS: [ToolWait(bytes(8), 3)],
    protocol.FORGET: [None, PulledBlocks(P0), PulledBlocks(P0, LeaseId("lease"))],
    protocol.STEP: [list(enumerate(DELTAS))],
    protocol.STREAM_FAILED: [StreamFailed(1, ErrorMessage.of(WorkerBusy("full", "d0")))],
}
RESULTS: dict[Method[Any, Any], list[Any]] = {
    protocol.PLACE: [PLACEMENT, Rejection(retry_after_s=1.5, why="no decode worker can be reached", is_overload=True)],
    protocol.REPORT: [
        DeltaReply(wants_standing=True),
        DeltaReply(False, True, True, 2.5, LinkOrder(P0, True), (P0,)),
        DeltaReply(False),
    ],
    protocol.ROSTER: [
        RosterChange(3, 5, [RosterEntry(D0, Pool.DECODE, 8, an_address("d0"))], [D0], 7),
    ],
    protocol.VIEW: [ClusterView(workers=[a_prefill_view("p0", 1), DECODE_VIEW])],
    protocol.QUEUE: [
        [QueuedRequest(request_id=R, slo_class=SloClass.BATCH, num_before=1, waited_s=0.1, wait_s=0.2, gives_up_s=0.3)]
    ],
    protocol.STATUS: [STATUS],
    protocol.DRAIN: [DrainAnswer(was_draining=True)],
    protocol.LOCATE: [an_address("d0"), None],
    protocol.LOAD: [
        LoadReading(
            scheduler="s",
            num_arrived=3,
            num_good=1,
            num_missed=1,
            num_waiting=0,
            sample=[OfferedRequest(100, 32, 20, 1.0, 3.0, 0.05)],
            prefill=PoolReading(open_requests={}, kv_share=0.0, engine=None),
            decode=PoolReading(
                open_requests={D0: 1},
                kv_share=0.5,
                engine=EngineReading(
                    step_coefficients={"fixed_s": 0.01}, kv_capacity_tokens=1000, max_step_tokens=512, max_running=8
                ),
            ),
        )
    ],
    protocol.PREFILL: [
        a_prefill_result(),
        PrefillResult(handoff=None, first=DELTAS[2]),
        PrefillResult(handoff=None, first=DELTAS[3]),
        None,
    ],
    protocol.REDEEM: [Promise(3.5), Refusal("the lease has expired")],
    protocol.EXTEND: [Promise(3.5), Refusal("the lease has expired")],
}

METHODS = [value for value in vars(protocol).values() if isinstance(value, Method)]
SENT = [(method.decode_argument, sample) for method, samples in ARGUMENTS.items() for sample in samples] + [
    (method.decode_result, sample) for method, samples in RESULTS.items() for sample in samples
]


def structs_in(value: Any) -> Iterator[msgspec.Struct]:
    """The structs that a value is or contains."""
    if isinstance(value, msgspec.Struct):
        yield value
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from structs_in(one)


def type_of(decode: Any) -> Any:
    """The type that a method's decoder expects."""
    return cast(msgspec.msgpack.Decoder[Any], decode.__self__).type


def messages_of(decode: Any) -> set[type[msgspec.Struct]]:
    """The structs that a value of the decoder's type may be or contain."""
    parts = structs_in(msgspec.inspect.type_info(type_of(decode)))
    return {part.cls for part in parts if isinstance(part, msgspec.inspect.StructType)}


MESSAGES = set[type[msgspec.Struct]]().union(
    *(messages_of(decode) for method in METHODS for decode in (method.decode_argument, method.decode_result))
)


@pytest.mark.parametrize(("decode", "sample"), SENT, ids=[type(sample).__name__ for _, sample in SENT])
def test_message_survives_the_way_between_processes(decode: Callable[[bytes], Any], sample: Any) -> None:
    assert decode(msgspec.msgpack.encode(sample)) == sample


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_each_method_has_samples_of_all_that_it_may_send(method: Method[Any, Any]) -> None:
    for decode, samples in ((method.decode_argument, ARGUMENTS), (method.decode_result, RESULTS)):
        assert messages_of(decode) - {type(struct) for struct in structs_in(samples.get(method, []))} == set()
    assert method in ARGUMENTS
    assert (method in RESULTS) == (type_of(method.decode_result) is not None)


@pytest.mark.parametrize("message", sorted(MESSAGES, key=str), ids=lambda message: message.__name__)
def test_message_cannot_be_changed(message: type[msgspec.Struct]) -> None:
    assert message.__struct_config__.frozen
