"""POST /baton/chat: an answer of the model for the page, and at its end what became of the request.

The request takes the path of every chat completion: the screening, the ledger and the limits of the tenant `operator`,
the Scheduler, the engines. The stream has the frames of a chat completion, and one event `baton` before its last frame.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response

from api.edge.capacity import full
from api.edge.exchange import EXCHANGE
from api.edge.request_id import HTTP_REQUEST, TRACE
from api.frontend.frontend import Frames
from api.frontend.generation import Call
from api.frontend.vllm_errors import error_in_frame
from api.routes.admin.requests import body_of
from api.routes.call_headers import headers_of
from api.routes.services import IngressServices, services_of
from api.server.event_stream import CountedStream
from api.web.operator_chat import OPERATOR, AnswerReport, ChatBody
from api.web.recent_requests import EndedRequest, request_line
from api.wire.sse import DONE, named_frame
from cluster.errors import InvalidRequest

router = APIRouter(prefix="/baton")


@router.post("/chat")
async def chat(request: Request) -> Response:
    services, body = services_of(request), await body_of(request, ChatBody)
    if body.path is not None and not services.config.allow_path_header:
        raise InvalidRequest("ingress.allow_path_header is false here", "path", "unsupported_parameter")
    call = _call(request, services, body)
    units = services.capacity.acquire()
    if units is None:
        raise full(services.capacity)
    try:
        (model, *_) = await services.frontend.models()
        frames = await services.frontend.chat_completion(body.for_frontend(model["id"]), call)
    except BaseException:
        units.release()
        raise
    assert not isinstance(frames, dict)  # the body asks for a stream
    return CountedStream(
        units,
        _with_report(frames, call, services),
        error_in=lambda frame: error_in_frame(frame, call.error),
        headers_of_status=lambda: headers_of(call),
        keep_alive_s=services.config.keep_alive_s,
    )


def _call(request: Request, services: IngressServices, body: ChatBody) -> Call:
    """Raises RateLimited, QuotaExceeded."""
    charging, tell = services.charging, request.scope[EXCHANGE].add_headers
    call = Call(
        tenant=OPERATOR.tenant,
        charge=None if charging is None else charging.charge(OPERATOR, "", tell, names_maximum=True),
        path=body.path,
        http_request=HTTP_REQUEST.get(),
        trace=TRACE.get(),
        slo_class=body.slo_class,
    )
    if call.charge is not None:
        call.charge.look()
    return call


async def _with_report(frames: Frames, call: Call, services: IngressServices) -> AsyncGenerator[str | bytes, None]:
    async with aclosing(frames):
        async for frame in frames:
            if frame == DONE:
                break
            yield frame
    yield named_frame("baton", _report(call, services))


def _report(call: Call, services: IngressServices) -> AnswerReport:
    kept = next(iter(services.receipts.kept.named(f"chatcmpl-{call.id}")), None)
    placement = call.placement
    predicted = placement.predicted if placement else None
    return AnswerReport(
        request=request_line(EndedRequest(kept.receipt(), kept.closed_at)) if kept else None,
        request_id=f"chatcmpl-{call.id}",
        http_request=call.terms.http_request,
        path=placement.path if placement else None,
        predicted_ttft_s=predicted.ttft_s if predicted else None,
        predicted_tpot_s=predicted.tpot_s if predicted else None,
    )
