"""Messages with defaults, so that a test names only what it is about."""

from typing import Any

from cluster.types import (
    Address,
    ClusterView,
    FinishReason,
    GenerateRequest,
    LinkSpeed,
    PlacementRequest,
    Pool,
    PromptTokenSources,
    RequestId,
    TokenDelta,
    WorkerId,
    WorkerLoad,
    WorkerReport,
    WorkerTransport,
    WorkerView,
)
from kvtransfer.handoff import KVHandoff, PrefillResult


def a_request(request_id: str = "r", **fields: Any) -> GenerateRequest:
    defaults: dict[str, Any] = {"prompt_token_ids": [1, 2, 3, 4], "sampling_params": b""}
    return GenerateRequest(request_id=RequestId(request_id), **(defaults | fields))


def a_placement_request(request_id: str = "r", **fields: Any) -> PlacementRequest:
    return PlacementRequest(request_id=RequestId(request_id), **({"num_prompt_tokens": 4} | fields))


def an_address(host: str = "p0") -> Address:
    return Address(host, 1, "secret")


def a_prefill_report(worker: str = "p0") -> WorkerReport:
    return WorkerReport(worker=WorkerId(worker), pool=Pool.PREFILL, address=an_address(worker), load=WorkerLoad())


def a_decode_report(worker: str = "d0", connected: str = "p0") -> WorkerReport:
    """`connected` are worker ids, separated by spaces."""
    return WorkerReport(
        worker=WorkerId(worker),
        pool=Pool.DECODE,
        address=an_address(worker),
        load=WorkerLoad(),
        links=links(connected),
    )


def a_prefill_view(worker: str = "p0", num_placed: int = 0) -> WorkerView:
    return WorkerView(
        worker=WorkerId(worker),
        pool=Pool.PREFILL,
        load=WorkerLoad(),
        num_placed=num_placed,
        host="n0",
        transport=WorkerTransport(),
        links={},
        report_age_s=0.0,
    )


def a_decode_view(worker: str = "d0", num_placed: int = 0, connected: str = "p0") -> WorkerView:
    return WorkerView(
        worker=WorkerId(worker),
        pool=Pool.DECODE,
        load=WorkerLoad(),
        num_placed=num_placed,
        host="n0",
        transport=WorkerTransport(),
        links=links(connected),
        report_age_s=0.0,
    )


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


def a_handoff(remote_request_id: str = "r-internal") -> KVHandoff:
    return KVHandoff.from_engine(handoff_params(remote_request_id=remote_request_id))


def a_prefill_result(remote_request_id: str = "r-internal", computed: int = 3, local: int = 1) -> PrefillResult:
    return PrefillResult(handoff=a_handoff(remote_request_id), prompt_sources=PromptTokenSources(computed, local, 0))


def links(names: str) -> dict[WorkerId, LinkSpeed | None]:
    return dict.fromkeys(ids(names), LinkSpeed(0.001, 1e9))


def ids(names: str) -> frozenset[WorkerId]:
    return frozenset(WorkerId(name) for name in names.split())
