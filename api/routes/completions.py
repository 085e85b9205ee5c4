"""POST /v1/chat/completions and /v1/completions."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Send

from api.render import Call, error_in_frame
from api.wire import sse
from api.wire.bodies import public
from cluster.errors import InvalidRequest
from cluster.types import Path

PATH_HEADER = "x-baton-path"
"""Of a response: where it ran. Of a request, where the operator allows it: where it must run."""

Answer = dict[str, Any] | AsyncGenerator[str, None]

router = APIRouter(prefix="/v1")


@router.post("/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    return await _answered(request, request.app.state.frontend.chat_completion)


@router.post("/completions")
async def create_completion(request: Request) -> Response:
    return await _answered(request, request.app.state.frontend.completion)


class _Stream(StreamingResponse):
    async def stream_response(self, send: Send) -> None:
        async with aclosing(cast(AsyncGenerator[str, None], self.body_iterator)):
            await super().stream_response(send)


async def _answered(request: Request, answer: Callable[[Any, Call], Awaitable[Answer]]) -> Response:
    call = Call(_forced_path(request))
    result = await answer(await _json(request), call)
    if isinstance(result, dict):
        return JSONResponse(public(result), headers=_headers(call))
    frames = await sse.started(result, partial(error_in_frame, call=call))
    return _Stream(frames, media_type=sse.MEDIA_TYPE, headers=sse.HEADERS | _headers(call))


def _headers(call: Call) -> dict[str, str]:
    return {PATH_HEADER: call.path or ""}


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


async def _json(request: Request) -> Any:
    try:
        return msgspec.json.decode(await request.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}", None, "invalid_json") from error
