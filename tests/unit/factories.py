"""Messages with defaults, so that a test names only what it is about."""

from typing import Any

from cluster.messages.generation import FinishReason, GenerateRequest, PromptTokenSources, TokenDelta
from cluster.messages.ids import Address, Outcome, Pool, RequestId, SloClass, WorkerId
from cluster.messages.placement import PlacementRequest
from cluster.messages.reports import WorkerLoad, WorkerReport
from cluster.messages.transport import LinkSpeed, WorkerTransport
from cluster.messages.views import ClusterView, RosterEntry, WorkerView
from cluster.scheduler_registry import SchedulerRecord
from kvtransfer.handoff import KVHandoff, PrefillResult
from router.session.receipt import RouteReceipt

MANY = 100
"""Requests that a worker takes."""


def a_request(request_id: str = "r", **fields: Any) -> GenerateRequest:
    defaults: dict[str, Any] = {"prompt_token_ids": [1, 2, 3, 4], "sampling_params": b""}
    return GenerateRequest(request_id=RequestId(request_id), **(defaults | fields))


def a_placement_request(request_id: str = "r", **fields: Any) -> PlacementRequest:
    return PlacementRequest(request_id=RequestId(request_id), **({"num_prompt_tokens": 4} | fields))


def an_address(host: str = "p0") -> Address:
    return Address(host, 1, "70726f63657373")


def a_scheduler(address: Address, epoch: int = 1) -> SchedulerRecord:
    return SchedulerRecord(epoch=epoch, address=address, node="n0")


def a_prefill_report(worker: str = "p0") -> WorkerReport:
    return WorkerReport(
        worker=WorkerId(worker), pool=Pool.PREFILL, address=an_address(worker), load=WorkerLoad(), max_requests=MANY
    )


def a_decode_report(worker: str = "d0", connected: str = "p0") -> WorkerReport:
    """`connected` are worker ids, separated by spaces."""
    return WorkerReport(
        worker=WorkerId(worker),
        pool=Pool.DECODE,
        address=an_address(worker),
        load=WorkerLoad(),
        max_requests=MANY,
        links=links(connected),
    )


def a_prefill_view(worker: str = "p0", num_placed: int = 0, max_requests: int = MANY) -> WorkerView:
    return WorkerView(
        worker=WorkerId(worker),
        pool=Pool.PREFILL,
        num_placed=num_placed,
        max_requests=max_requests,
        host="n0",
        transport=WorkerTransport(),
        links={},
    )


def a_decode_view(
    worker: str = "d0", num_placed: int = 0, connected: str = "p0", max_requests: int = MANY
) -> WorkerView:
    return WorkerView(
        worker=WorkerId(worker),
        pool=Pool.DECODE,
        num_placed=num_placed,
        max_requests=max_requests,
        host="n0",
        transport=WorkerTransport(),
        links=links(connected),
    )


def an_entry(worker: str = "d0", max_requests: int = MANY) -> RosterEntry:
    pool = Pool.PREFILL if worker.startswith("p") else Pool.DECODE
    return RosterEntry(WorkerId(worker), pool, max_requests, an_address(worker))


def a_view(*workers: WorkerView) -> ClusterView:
    return ClusterView(workers=list(workers))


def a_delta(
    *token_ids: int, finish: FinishReason | None = None, sources: PromptTokenSources | None = None
) -> TokenDelta:
    return TokenDelta(0, list(token_ids), finish_reason=finish, prompt_sources=sources)


def handoff_params(**changes: Any) -> dict[str, Any]:
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "engine",
        "remote_request_id": "r-internal",
        "remote_host": "10.0.0.1",
        "remote_port": 5600,
        "remote_block_ids": [[3, 4]],
        "remote_num_tokens": 40,
        "tp_size": 1,
    }
    return params | changes


def a_handoff(lease: str = "r-internal", worker: str = "p0", num_tokens: int = 40) -> KVHandoff:
    params = handoff_params(remote_request_id=lease, remote_num_tokens=num_tokens)
    return KVHandoff.from_engine(WorkerId(worker), params)


def a_prefill_result(
    lease: str = "r-internal",
    computed: int = 3,
    local: int = 1,
    *,
    token: int = 10,
    finish: FinishReason | None = None,
    worker: str = "p0",
) -> PrefillResult:
    first = a_delta(token, finish=finish, sources=PromptTokenSources(computed, local, 0))
    return PrefillResult(handoff=a_handoff(lease, worker), first=first)


def a_receipt(request_id: str = "r", **fields: Any) -> RouteReceipt:
    defaults: dict[str, Any] = {
        "outcome": Outcome.FINISHED,
        "slo_class": SloClass.STANDARD,
        "placement": None,
        "num_prompt_tokens": 4,
        "num_output_tokens": 3,
        "num_attempts": 1,
        "ttft_s": 0.5,
        "tpot_s": 0.01,
        "prefill_sources": None,
        "sources": None,
    }
    return RouteReceipt(request_id=RequestId(request_id), **(defaults | fields))


def links(names: str) -> dict[WorkerId, LinkSpeed | None]:
    return dict.fromkeys(ids(names), LinkSpeed(0.001, 1e9))


def ids(names: str) -> frozenset[WorkerId]:
    return frozenset(WorkerId(name) for name in names.split())
