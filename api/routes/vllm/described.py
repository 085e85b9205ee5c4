"""What the document says of each public route beside its path, its rights and its docstring: the body, the parameters
and the answer.

The sets of fields are those that the routes themselves check. tests/component/api/routes/vllm/test_described.py asks
each route for what stands here.
"""

from collections.abc import Iterable

from api.openapi.operation import MESSAGES_ERROR, Parameter, RouteNotes
from api.openapi.schemas import INTEGER, OBJECT, STRING, Schema, of_fields, ref
from api.responses.idempotency import KEY_HEADER
from api.routes import context
from api.routes.stored import conversations, stored_completions
from api.wire import feedback
from api.wire.messages import request as messages
from api.wire.organization import usage
from api.wire.pages import DEFAULT_LIMIT, MAX_LIMIT
from api.wire.response_headers import PATH
from api.wire.responses.request import KNOWN, OVERRIDES, TYPES
from api.wire.safety import appeals, moderations
from api.wire.slo import TPOT_HEADER, TTFT_HEADER
from cluster.messages.ids import Path

_PAGED = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
    Parameter("order", {"type": "string", "enum": ["asc", "desc"]}),
    Parameter("after"),
)
_METADATA = Parameter("metadata", {"type": "object", "additionalProperties": STRING}, style="deepObject")
_NUMBER: Schema = {"type": "number", "exclusiveMinimum": 0}
_TERMS = (
    Parameter(TTFT_HEADER, _NUMBER, "header"),
    Parameter(TPOT_HEADER, _NUMBER, "header"),
    Parameter(PATH, {"type": "string", "enum": [str(path) for path in Path]}, "header"),
)
_TURN = (*_TERMS, Parameter(KEY_HEADER, STRING, "header"))
_OF_MESSAGES = {"max_tokens": int, "messages": list, "model": str, "stream": bool, "tools": list}
_WHOLE = {"start_time", "end_time", "limit"}
_SUMS = (
    *(Parameter(name, {"type": "array", "items": STRING}) for name in sorted(usage.LISTS)),
    *(
        Parameter(name, INTEGER if name in _WHOLE else STRING, is_required=name == "start_time")
        for name in sorted(usage.SINGLE)
    ),
)


def _with(names: Iterable[str]) -> tuple[Parameter, ...]:
    """A list in pages, with filters."""
    return (*(Parameter(name) for name in names), *_PAGED)


DESCRIBED: dict[str, RouteNotes] = {
    "POST /v1/chat/completions": RouteNotes(
        body=ref("ChatCompletionRequest"),
        answer=ref("ChatCompletionResponse"),
        events=ref("ChatCompletionStreamResponse"),
        parameters=_TERMS,
        is_generated=True,
    ),
    "POST /v1/completions": RouteNotes(
        body=ref("CompletionRequest"),
        answer=ref("CompletionResponse"),
        events=ref("CompletionStreamResponse"),
        parameters=_TERMS,
        is_generated=True,
    ),
    "POST /v1/messages": RouteNotes(
        body=of_fields(messages.READ | messages.IGNORED, _OF_MESSAGES, ["max_tokens", "messages", "model"]),
        events=OBJECT,
        parameters=_TERMS,
        is_generated=True,
        error=MESSAGES_ERROR,
    ),
    "POST /v1/messages/count_tokens": RouteNotes(
        body=of_fields(messages.READ | messages.IGNORED, _OF_MESSAGES, ["messages", "model"]), error=MESSAGES_ERROR
    ),
    "POST /v1/responses": RouteNotes(
        body=of_fields(KNOWN, TYPES, ["model"]), events=OBJECT, parameters=_TURN, is_generated=True
    ),
    "GET /v1/responses/{response}": RouteNotes(
        events=OBJECT,
        parameters=(Parameter("stream", {"type": "boolean"}), Parameter("starting_after", INTEGER)),
    ),
    "POST /v1/responses/{response}/regenerate": RouteNotes(
        body=of_fields(OVERRIDES, TYPES), events=OBJECT, parameters=_TURN, is_generated=True
    ),
    "POST /v1/responses/{response}/cancel": RouteNotes(),
    "GET /v1/responses/{response}/input_items": RouteNotes(parameters=_PAGED),
    "POST /v1/responses/compact": RouteNotes(body=of_fields(context.COMPACT, TYPES, ["model"]), parameters=_TERMS),
    "POST /v1/responses/input_tokens": RouteNotes(body=of_fields(context.INPUT_TOKENS, TYPES)),
    "GET /v1/chat/completions": RouteNotes(parameters=(*_with(("model", "user")), _METADATA)),
    "POST /v1/chat/completions/{completion}": RouteNotes(
        body=of_fields(stored_completions.UPDATED, {"metadata": dict}, ["metadata"])
    ),
    "GET /v1/chat/completions/{completion}/messages": RouteNotes(parameters=_PAGED),
    "POST /v1/conversations": RouteNotes(
        body=of_fields(conversations.CREATED, {"items": list, "metadata": dict, "title": str, "user": str})
    ),
    "GET /v1/conversations": RouteNotes(parameters=(*_with(("query", "user")), _METADATA)),
    "POST /v1/conversations/{conversation}": RouteNotes(body=of_fields(conversations.UPDATED, {"metadata": dict})),
    "POST /v1/conversations/{conversation}/items": RouteNotes(
        body=of_fields(conversations.ADDED, {"items": list}, ["items"])
    ),
    "GET /v1/conversations/{conversation}/items": RouteNotes(parameters=_PAGED),
    "POST /v1/feedback": RouteNotes(
        body=of_fields(feedback.KNOWN, {"response_id": str, "labels": list}, ["rating", "response_id"])
    ),
    "GET /v1/feedback": RouteNotes(parameters=_with(("rating", "response_id"))),
    "POST /v1/moderations": RouteNotes(body=of_fields(moderations.KNOWN, {}, ["input"])),
    "GET /v1/safety/events": RouteNotes(parameters=_with(appeals.FILTERS)),
    "POST /v1/safety/appeals": RouteNotes(
        body=of_fields(appeals.KNOWN, {"event_id": str, "reason": str}, appeals.KNOWN)
    ),
    "GET /v1/safety/appeals": RouteNotes(parameters=_PAGED),
    "GET /v1/organization/usage/completions": RouteNotes(parameters=_SUMS),
    "GET /v1/organization/costs": RouteNotes(parameters=_SUMS),
    "POST /tokenize": RouteNotes(
        body={"oneOf": [ref("TokenizeCompletionRequest"), ref("TokenizeChatRequest")]}, answer=ref("TokenizeResponse")
    ),
    "POST /detokenize": RouteNotes(body=ref("DetokenizeRequest"), answer=ref("DetokenizeResponse")),
    "GET /docs": RouteNotes(media_type="text/html"),
    "GET /healthz": RouteNotes(unready="The replica is full, and no request ends"),
    "GET /readyz": RouteNotes(unready="No prefill worker can hand over to a decode worker"),
}
"""By method and path. A route without a body, without parameters and with any object as its answer needs no entry."""
