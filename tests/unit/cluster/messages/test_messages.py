import pickle

import msgspec
import pytest

from cluster.messages.generation import FinishReason, PromptTokenSources, TokenDelta
from cluster.messages.ids import Path, Pool, RequestId, WorkerId
from cluster.messages.placement import Placement, Rejection
from cluster.messages.reports import ReportReply
from cluster.messages.scheduler_events import RequestClosed, WorkerLost
from cluster.messages.views import ClusterView
from tests.unit.factories import (
    a_decode_report,
    a_decode_view,
    a_delta,
    a_handoff,
    a_placement_request,
    a_prefill_view,
    a_request,
    a_view,
    ids,
)

MESSAGES = [
    a_request(sampling_params=b"\x00\xff", num_sequences=2, reasoning_ended=False, reasoning_parser_kwargs={"a": [1]}),
    a_delta(1, 2),
    TokenDelta(3, [], FinishReason.STOP, "</s>", PromptTokenSources(1, 2, 3), (b"\x00", b"")),
    TokenDelta(0, [7], FinishReason.LENGTH, 42),
    a_decode_report("d0", "p0 p1"),
    ReportReply(prefill_workers=ids("p0")),
    a_placement_request(excluded=ids("p0 d0"), path=Path.PREFILL_DECODE),
    Placement(path=Path.DECODE, prefill=None, decode=WorkerId("d0"), why="no connected pair"),
    Rejection(retry_after_s=1.5, why="no decode worker can be reached"),
    RequestClosed(request_id=RequestId("r")),
    WorkerLost(worker=WorkerId("d0")),
    a_view(a_prefill_view("p0", 1), a_decode_view("d0", 2, connected="p0")),
    a_handoff(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_survives_the_way_between_processes(message: msgspec.Struct) -> None:
    assert pickle.loads(pickle.dumps(message)) == message
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_cannot_be_changed(message: msgspec.Struct) -> None:
    with pytest.raises(AttributeError):
        setattr(message, message.__struct_fields__[0], None)


def test_view_counts_its_workers_and_links() -> None:
    view = a_view(a_prefill_view("p0"), a_prefill_view("p1"), a_decode_view("d0", connected="p0 p1"))
    assert (view.num_prefill, view.num_decode, view.num_links, view.is_ready) == (2, 1, 2, True)


@pytest.mark.parametrize(
    "view",
    [
        ClusterView(workers=[]),
        a_view(a_prefill_view("p0")),
        a_view(a_prefill_view("p0"), a_decode_view("d0", connected="")),
    ],
    ids=["no workers", "no decode worker", "no link"],
)
def test_cluster_is_ready_once_a_pair_can_hand_over(view: ClusterView) -> None:
    assert not view.is_ready


def test_paths_and_pools_are_written_as_their_values() -> None:
    assert (str(Path.PREFILL_DECODE), str(Path.DECODE), str(Pool.PREFILL)) == ("P->D", "D", "prefill")
