"""POST /v1/chat/completions and /v1/completions."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from api.generation import Call
from api.render import Frames
from api.vllm_errors import error_in_frame
from api.wire.bodies import public
from api.wire.event_stream import EventStream
from api.wire.requests import json_of, tenant_of
from api.wire.slo import TPOT_HEADER, TTFT_HEADER, seconds_of, slo_class_of, tier_of
from cluster.errors import InvalidRequest
from cluster.types import Path, Prediction, Slo

PATH_HEADER = "x-baton-path"
"""Of a response: where it ran. Of a request, where the operator allows it: where it must run."""

SOURCES_HEADER = "x-baton-prompt-tokens"
"""Of a response: how many tokens of the prompt the worker of the first token computed, and found where."""

SLO_HEADER = "x-baton-slo"
"""Of a response: its SLO class, and the TTFT and TPOT that it was to meet."""

PREDICTED_HEADER = "x-baton-predicted"
"""Of a response: the TTFT and TPOT that it was placed for."""

Answer = Callable[[Any, Call], Awaitable[dict[str, Any] | Frames]]


async def create_chat_completion(request: Request) -> Response:
    return await _answered(request, request.app.state.frontend.chat_completion)


async def create_completion(request: Request) -> Response:
    return await _answered(request, request.app.state.frontend.completion)


# Plain routes: FastAPI's own would resolve dependencies, of which there are none, for each request.
router = APIRouter()
router.add_route("/v1/chat/completions", create_chat_completion, methods=["POST"])
router.add_route("/v1/completions", create_completion, methods=["POST"])


async def _answered(request: Request, answer: Answer) -> Response:
    call = Call(
        tenant=tenant_of(request),
        path=_forced_path(request),
        ttft_s=seconds_of(request.headers, TTFT_HEADER),
        tpot_s=seconds_of(request.headers, TPOT_HEADER),
    )
    body = await json_of(request)
    call.terms = msgspec.structs.replace(call.terms, slo_class=slo_class_of(body))
    result = await answer(body, call)
    if isinstance(result, dict):
        if "service_tier" in result:  # vLLM's own is always null
            result["service_tier"] = tier_of(call.terms.slo_class)
        return JSONResponse(public(result), headers=_headers(call))
    return EventStream(
        result,
        error_in=lambda frame: error_in_frame(frame, call.error),
        headers_of_status=lambda: _headers(call),
        keep_alive_s=request.app.state.keep_alive_s,
    )


def _headers(call: Call) -> dict[str, str]:
    placement = call.placement
    headers = {PATH_HEADER: placement.path if placement else "", SLO_HEADER: _listed(class_=call.terms.slo_class)}
    if placement is not None and placement.slo is not None:
        headers[SLO_HEADER] += ", " + _milliseconds(placement.slo)
    if placement is not None and placement.predicted is not None:
        headers[PREDICTED_HEADER] = _milliseconds(placement.predicted)
    if call.prompt_sources is not None:
        headers[SOURCES_HEADER] = _listed(**msgspec.structs.asdict(call.prompt_sources))
    return headers


def _milliseconds(times: Slo | Prediction) -> str:
    return _listed(ttft_ms=round(1000 * times.ttft_s), tpot_ms=round(1000 * times.tpot_s, 1))


def _listed(**values: object) -> str:
    return ", ".join(f"{name.rstrip('_')}={value}" for name, value in values.items())


def _forced_path(request: Request) -> Path | None:
    """Raises InvalidRequest for a header that is not allowed or names no path."""
    wanted = request.headers.get(PATH_HEADER)
    if wanted is None:
        return None
    if not request.app.state.allow_path_header:
        raise InvalidRequest(f"the header {PATH_HEADER} is not allowed here", None, "unsupported_parameter")
    if wanted not in set(Path):
        raise InvalidRequest(f"{PATH_HEADER} must be one of {', '.join(Path)}", None, "invalid_value")
    return Path(wanted)
