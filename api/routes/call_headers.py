"""Request and response headers of the routes that generate: how to run a request, and how the request was run."""

from typing import Any

import msgspec
from fastapi.requests import HTTPConnection, Request

from api.edge.edge import hold_more
from api.edge.exchange import EXCHANGE
from api.edge.request_id import HTTP_REQUEST, TRACE
from api.frontend.generation import Call
from api.identity.rights import Right
from api.identity.tenants import principal_of
from api.routes.services import services_of
from api.server.json_body import checked
from api.state.postgres.stores.items import refers
from api.wire import response_headers
from api.wire.constraints import check_constraints
from api.wire.limits.bounds import check_sequences
from api.wire.responses.request import ResponseRequest
from api.wire.slo import TPOT_HEADER, TTFT_HEADER, seconds_of, slo_class_of
from cluster.errors import InvalidRequest
from cluster.messages.ids import Path
from cluster.messages.placement import Prediction, Slo

_MAXIMA = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""The fields of requests that bound the tokens of an answer."""


def call_of(request: HTTPConnection, body: Any) -> Call:
    """The call that a request's headers and body describe, in the best SLO class that its tenant may have.

    Raises:
        InvalidRequest: a header or a field is wrong.
        Forbidden: the credential may not use the model.
        RateLimited, QuotaExceeded: a limit has no room, as was found a moment ago.
    """
    principal = principal_of(request)
    settings = principal.settings
    principal.require_model(body.get("model") if isinstance(body, dict) else None)
    charging, tell = services_of(request).charging, request.scope[EXCHANGE].add_headers
    ttft_s, tpot_s = (seconds_of(request.headers, name) for name in (TTFT_HEADER, TPOT_HEADER))
    charge = None
    if charging is not None:
        charge = charging.charge(principal, _end_user_in(body), tell, names_maximum=_names_maximum(body))
    call = Call(
        tenant=principal.tenant,
        shares_prefixes=settings.share_prefixes,
        charge=charge,
        path=_forced_path(request),
        tenant_weight=settings.weight,
        http_request=HTTP_REQUEST.get(),
        trace=TRACE.get(),
        slo_class=settings.served_as(slo_class_of(body)),
        ttft_s=ttft_s if settings.may_tighten else None,
        tpot_s=tpot_s if settings.may_tighten else None,
    )
    if call.charge is not None:
        call.charge.look()
    return call


def require_what_it_takes(request: HTTPConnection, wanted: ResponseRequest) -> None:
    """Check that the credential may use the model and the stored items that a request names. Raises Forbidden."""
    principal = principal_of(request)
    principal.require_model(wanted.body["model"])
    if wanted.conversation or wanted.previous or refers(wanted.items):
        principal.require(Right.STATE_READ, ", or send the whole input")


def tell_left_out(request: Request, wanted: ResponseRequest) -> None:
    """Have the answer name the tools that the model is not given."""
    if wanted.left_out:
        told = {response_headers.IGNORED: f"tools: {', '.join(wanted.left_out)}"}
        request.scope[EXCHANGE].add_headers(told)


async def check_constraints_of(request: HTTPConnection, body: Any) -> None:
    """Check the constraints of structured output in a body. Raises InvalidRequest."""
    config = services_of(request).config.structured_output
    await checked(request, None, lambda: check_constraints(body, config))


def hold_sequences(request: HTTPConnection, body: Any) -> None:
    """Take one unit of the replica's capacity for each sequence that a request asks for. The request already holds the
    first unit. Raises InvalidRequest, Overloaded.
    """
    number = check_sequences(body, services_of(request).max_sequences)
    if number > 1:
        hold_more(request.scope, number - 1)


def headers_of(call: Call) -> dict[str, str]:
    placement = call.placement
    headers = {
        response_headers.PATH: placement.path if placement else "",
        response_headers.SLO: _listed(class_=call.terms.slo_class),
    }
    if placement is not None and placement.slo is not None:
        headers[response_headers.SLO] += ", " + _milliseconds(placement.slo)
    if placement is not None and placement.predicted is not None:
        headers[response_headers.PREDICTED] = _milliseconds(placement.predicted)
    if call.prompt_sources is not None:
        headers[response_headers.SOURCES] = _listed(**msgspec.structs.asdict(call.prompt_sources))
    return headers


def _end_user_in(body: Any) -> str:
    """Empty if the request names nobody. `safety_identifier` has taken the place of `user` in OpenAI's API."""
    names = [body.get(field) for field in ("safety_identifier", "user")] if isinstance(body, dict) else []
    return next((name for name in names if isinstance(name, str) and name), "")


def _names_maximum(body: Any) -> bool:
    """Whether a request says how many tokens its answer may have."""
    return isinstance(body, dict) and any(body.get(field) is not None for field in _MAXIMA)


def _milliseconds(times: Slo | Prediction) -> str:
    return _listed(ttft_ms=round(1000 * times.ttft_s), tpot_ms=round(1000 * times.tpot_s, 1))


def _listed(**values: object) -> str:
    return ", ".join(f"{name.rstrip('_')}={value}" for name, value in values.items())


def _forced_path(request: HTTPConnection) -> Path | None:
    """The path that the request's header forces; None without the header. Raises InvalidRequest if the header is not
    allowed, or if it names no path.
    """
    wanted = request.headers.get(response_headers.PATH)
    if wanted is None:
        return None
    if not services_of(request).config.allow_path_header:
        raise InvalidRequest(f"the header {response_headers.PATH} is not allowed here", None, "unsupported_parameter")
    if wanted not in set(Path):
        raise InvalidRequest(f"{response_headers.PATH} must be one of {', '.join(Path)}", None, "invalid_value")
    return Path(wanted)
